"""Samples with values and log-probabilities, made by hand, for algorithms with a critic."""

import numpy as np
import torch

from posttrain.functional.reduce import token_weights
from posttrain.types import Ending, Sample, TokenBatch
from tests.golden import fixtures as f1


def sample(values, *, mask=None, turns=None, reward=1.0, group=0, rollout=0, ending=Ending.STOP, **fields):
    """A sample of one prompt token and the given values; NaN stands at every place that does not train."""
    count = len(values)
    trained = np.array([False, *([True] * count if mask is None else mask)])
    order = iter([0] * count if turns is None else turns)

    def row(numbers):
        spread = np.full(len(trained), np.nan)
        spread[1:] = numbers
        return np.where(trained, spread, np.nan)

    logprobs = {name: row(fields.pop(name)) for name in ("old_logprobs", "ref_logprobs") if name in fields}
    return Sample(
        ids=np.arange(len(trained)),
        loss_mask=trained,
        prompt_length=1,
        group=group,
        rollout=rollout,
        advantages=np.where(trained, 0.0, np.nan),
        rollout_logprobs=np.full(len(trained), np.nan),
        versions=np.where(trained, 0, -1),
        turns=np.array([next(order) if place else -1 for place in trained]),
        values=row(values),
        reward=reward,
        ending=ending,
        **logprobs,
        **fields,
    )


def advantages(samples):
    """What is on the trained places, sample after sample."""
    return [one.advantages[one.loss_mask].tolist() for one in samples]


def returns(samples):
    """The critic's targets on the trained places."""
    return [one.returns[one.loss_mask].tolist() for one in samples]


def f1_batch(streams, *, positive=(True, False, True, True), on_policy=False):
    """The golden fixture F1 with values and returns."""
    generator = torch.Generator().manual_seed(4)
    count = len(f1.SAMPLES)
    values, targets, old_values = (torch.randn(count, generator=generator, dtype=torch.float64) for _ in range(3))
    weights = {
        part: token_weights(mode, f1.COUNTS, positive=torch.tensor(positive))[f1.SAMPLES]
        for part, mode in streams.items()
    }
    batch = TokenBatch(
        samples=f1.SAMPLES,
        sample_count=f1.COUNT,
        advantages=f1.A,
        token_weight=weights,
        old_logprobs=None if on_policy else f1.old,
        ref_logprobs=f1.ref,
        old_values=old_values,
        returns=targets,
    )
    return batch, values.requires_grad_()
