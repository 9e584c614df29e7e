"""Supervised fine-tuning: the mean negative log-likelihood, whatever the split."""

import pytest
import torch

from posttrain.algorithms.sft import SFT, Config
from tests.algorithms.examples import batch, empty, gradient, group, logprobs, value
from tests.golden.fixtures import COUNTS, SAMPLES, new


def build(**options) -> SFT:
    return SFT(Config(**options))


def test_loss_is_the_token_mean():
    sft = build()
    assert float(-new.mean()) == pytest.approx(
        value(sft.loss(batch(streams=sft.needs.streams), new, None, None)), abs=1e-12
    )


def test_loss_can_weigh_every_demonstration_the_same():
    sft = build(reduction="seq-mean-token-mean")
    expected = torch.stack([-new[SAMPLES == row].mean() for row in range(4)]).mean()
    actual = value(sft.loss(batch(streams=sft.needs.streams), new, None, None))
    assert float(expected) == pytest.approx(actual, abs=1e-12)


def test_gradient_is_minus_one_over_the_token_count():
    sft, leaf = build(), logprobs()
    actual = gradient(sft.loss(batch(streams=sft.needs.streams), leaf, None, None), leaf)
    assert [-1 / int(COUNTS.sum())] * 13 == pytest.approx(actual, abs=1e-12)


@pytest.mark.parametrize("split", [((0, 1), (2, 3)), ((3,), (1, 0), (2,)), ((0,), (1,), (2,), (3,))])
@pytest.mark.parametrize("reduction", ["token-mean", "seq-mean-token-mean"])
def test_microbatches_add_up(split, reduction):
    sft = build(reduction=reduction)
    whole = value(sft.loss(batch(streams=sft.needs.streams), logprobs(), None, None))
    parts = [sft.loss(batch(rows, streams=sft.needs.streams), logprobs(rows), None, None) for rows in split]
    assert whole == pytest.approx(sum(value(part) for part in parts), abs=1e-12)


def test_an_empty_batch_is_zero_with_a_live_graph():
    sft = build()
    leaf = torch.zeros(0, dtype=torch.float64, requires_grad=True)
    loss = sft.loss(empty(sft.needs.streams), leaf, None, None)
    assert (0.0, []) == (value(loss), gradient(loss, leaf))


def test_every_demonstration_is_kept_with_advantage_one():
    sft, demonstration = build(), group([None])
    assert sft.keep(demonstration)
    assert [[1.0]] == [[float(a) for a in row] for row in sft.advantages([demonstration])]


def test_it_needs_no_engine():
    assert not build().needs.engine


def test_the_reported_loss_is_the_loss():
    sft = build()
    loss = sft.loss(batch(streams=sft.needs.streams), new, None, None)
    assert value(loss) == loss.stats["loss"].result
