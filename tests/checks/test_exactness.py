"""The comparisons behind the checks: gradients, losses, and their distances."""

import math

import numpy as np
import pytest
import torch

from posttrain.algorithms.grpo import GRPO
from posttrain.batches.build import weigh
from posttrain.batches.pack import pack
from posttrain.checks.exactness import (
    check_layouts,
    check_masked_nan,
    check_ratio,
    clear_gradient,
    gradient_distance,
    loss_and_gradient,
    tolerance,
)
from posttrain.checks.padding import check_padding_side, left_padded_logprobs
from tests.checks.subjects import faulty
from tests.learners.learning import build, build_model
from tests.models.samples import plain_logprobs, ragged_groups


def padded(samples):
    return pack(samples, token_budget=10**6, layout="padded")


def trained():
    return [one for one in ragged_groups() if one.loss_mask.any()]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.5], [1.0, 2.0], 0.25),
        ([math.nan, 2.0], [1.0, 2.0], math.inf),
        ([0.0, 0.0], [0.0, 0.0], 0.0),
    ],
)
def test_gradient_distance(one, other, expected):
    assert expected == gradient_distance([torch.tensor(one)], [torch.tensor(other)])


def test_a_missing_gradient_is_far_away():
    assert math.inf == gradient_distance([], [torch.ones(1)])


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-6), (torch.float32, 1e-4), (torch.bfloat16, 5e-2)])
def test_the_bound_follows_the_number_type(dtype, bound):
    class Learner:
        def named_tensors(self):
            return [("w", torch.zeros(1, dtype=dtype))]

    assert bound == tolerance(Learner())


def test_a_gradient_is_taken_away_and_kept():
    learner = build(build_model(dtype=torch.float64))
    weighed = weigh(trained(), {"policy": "token-mean"})
    _, gradient = loss_and_gradient(padded(weighed), learner, faulty(GRPO))
    left = [name for name, p in learner.named_tensors() if p.grad is not None]
    assert (len(list(learner.named_tensors())), []) == (len(gradient), left)


def test_a_loss_is_summed_over_microbatches():
    learner = build(build_model(dtype=torch.float64))
    weighed = weigh(trained(), {"policy": "token-mean"})
    whole, _ = loss_and_gradient(padded(weighed), learner, faulty(GRPO))
    parts, _ = loss_and_gradient(pack(weighed, token_budget=20, layout="padded"), learner, faulty(GRPO))
    assert whole == pytest.approx(parts, abs=1e-9)


def test_a_gradient_that_was_there_does_not_count():
    learner = build(build_model(dtype=torch.float64))
    weighed = weigh(trained(), {"policy": "token-mean"})
    _, before = loss_and_gradient(padded(weighed), learner, faulty(GRPO))
    for _, p in learner.named_tensors():
        p.grad = torch.ones_like(p)
    _, after = loss_and_gradient(padded(weighed), learner, faulty(GRPO))
    assert gradient_distance(after, before) < 1e-12


def test_clearing():
    learner = build()
    for _, p in learner.named_tensors():
        p.grad = torch.ones_like(p)
    clear_gradient(learner)
    assert [] == [name for name, p in learner.named_tensors() if p.grad is not None]


def test_ragged_groups_pass_every_layout():
    learner = build(build_model())
    results = check_layouts(trained(), learner, faulty(GRPO), learner.layouts)
    assert ["pass"] * 4 == [result.status for result in results]


def test_a_masked_nan_passes_on_the_real_learner():
    assert "pass" == check_masked_nan(trained(), build(), faulty(GRPO)).status


def test_the_ratio_needs_no_order():
    assert "pass" == check_ratio(trained()[::-1], build(), padded).status


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-6), (torch.float32, 1e-5)])
def test_left_padded_rows_give_the_plain_numbers(dtype, bound):
    model = build_model(dtype=dtype)
    with torch.no_grad():
        expected = plain_logprobs(model, trained())
    found = left_padded_logprobs(trained(), model, 1.0)
    worst = [np.abs(a.numpy() - b[s.loss_mask]).max() for s, a, b in zip(trained(), expected, found, strict=True)]
    assert max(worst) < bound


def test_left_padded_rows_are_scored_at_the_temperature():
    one, other = (left_padded_logprobs(trained()[:1], build_model(), t)[0][1:] for t in (1.0, 0.5))
    assert not np.allclose(one, other)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_ragged_rows_pass_the_padding_check(dtype):
    assert "pass" == check_padding_side(trained(), build(build_model(dtype=dtype))).status


def test_a_learner_without_a_model_is_not_tried():
    class Remote:
        pass

    assert "skip" == check_padding_side(trained(), Remote()).status
