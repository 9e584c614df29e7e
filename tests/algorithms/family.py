"""What the tests of the policy gradient family share: F1 as groups and samples, and every online algorithm by name."""

import dataclasses
import importlib

import numpy as np
import torch

from posttrain.batches.build import build_samples
from posttrain.plugs import build_plug, plug_names
from posttrain.settings import Plug
from posttrain.types import Ending, Group, Outcome, Rollout, Sample, Score, Segment
from tests.algorithms.examples import TASK
from tests.golden import fixtures as f1

NAN = float("nan")


def make(name, **options):
    """A shipped algorithm with its options."""
    return build_plug("algorithms", Plug(type=name, **options), seed=0, token_limit=20480)


def online_names():
    """Shipped algorithms that train on rollouts sampled now, new files included."""
    return [name for name in plug_names("algorithms") if make(name).needs.engine]


def critic_free_names():
    """Those of them that need neither critic nor teacher."""
    found = [(name, make(name).needs) for name in online_names()]
    return [name for name, needs in found if not (needs.values or needs.teacher_logprobs or needs.divergence)]


def grouped_names():
    """Those of them that compare the rollouts of a group."""
    return [name for name in critic_free_names() if make(name).needs.group_size > 1]


def segment(mask, *, prompt=1, turns=None, roll=None):
    """One row: prompt tokens, then tokens of which ``mask`` says which were sampled."""
    sampled = [False] * prompt + [bool(m) for m in mask]
    given = iter(roll if roll is not None else [-1.0] * sum(sampled))
    named = iter(turns if turns is not None else [0] * sum(sampled))
    return Segment(
        ids=tuple(range(1, len(sampled) + 1)),
        loss_mask=tuple(sampled),
        rollout_logprobs=tuple(next(given) if s else NAN for s in sampled),
        versions=tuple(0 if s else -1 for s in sampled),
        turns=tuple(next(named) if s else -1 for s in sampled),
        prompt_length=prompt,
    )


def rollout(index, reward, *segments, **options):
    """A rollout of these segments, or of one with two sampled tokens."""
    given = {"text": "", "messages": (), "ending": Ending.STOP, "seed": index, "task": TASK} | options
    return Rollout(index=index, segments=segments or (segment([1, 1]),), reward=reward, **given)


def group_of(*rollouts, position=0, **options):
    """A group."""
    return Group(position=position, task=TASK, rollouts=rollouts, **options)


def f1_group(rewards=(1.0, 0.0, 1.0, 0.5), **options):
    """F1 as one group: its masks with the tool token in row 0, its rollout log-probabilities."""
    rows = [
        segment(mask[: int(torch.nonzero(mask).max()) + 1].tolist(), roll=roll[mask].tolist())
        for mask, roll in zip(f1.MASK, f1.ROLL, strict=True)
    ]
    return group_of(*(rollout(i, r, row) for i, (r, row) in enumerate(zip(rewards, rows, strict=True))), **options)


def anchored(samples, *, old=f1.old, ref=f1.ref, refine=True):
    """The samples with flat old and reference log-probabilities at their trained tokens, NaN elsewhere."""
    used, result = 0, []
    for sample in samples:
        count = int(sample.loss_mask.sum())
        rows = {}
        for field, flat in (("old_logprobs", old), ("ref_logprobs", ref)):
            rows[field] = np.full(len(sample), np.nan)
            rows[field][sample.loss_mask] = flat[used : used + count].numpy()
        used += count
        result.append(dataclasses.replace(sample, **rows))
    return result


def samples_of(algorithm, *groups, **logprobs) -> list[Sample]:
    """Groups through advantages, build, anchors and refine, as in a step."""
    samples = anchored(build_samples(groups, algorithm.advantages(groups)), **logprobs)
    refine = getattr(algorithm, "refine", None)
    return samples if refine is None else refine(samples)


def final(algorithm, *groups, **logprobs) -> list[float]:
    """Final advantages at the trained tokens, flat."""
    return [float(a) for s in samples_of(algorithm, *groups, **logprobs) for a in s.advantages[s.loss_mask]]


def scores(**values):
    """Scores by name; None is a part that does not apply."""
    return tuple(Score(name=name, value=value, outcome=Outcome.SCORED) for name, value in values.items())


def module(name):
    """The algorithm's module."""
    return importlib.import_module(f"posttrain.algorithms.{name}")
