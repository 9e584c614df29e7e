"""Corrections by value and by brute force: which weights give the true policy gradient, and no double counting."""

import itertools

import pytest
import torch

from posttrain.functional import mismatch
from posttrain.functional.surrogates import clipped, reinforce
from tests.golden.fixtures import COUNT, SAMPLES, A, f64, new, old, roll

WIDE = {"clip_low": 1.0, "clip_high": 1e9}
POLICY, BEHAVIOUR = f64([0.3, -0.2, 0.9]), f64([1.0, 0.0, -0.5]).log_softmax(0)
REWARDS = f64([1.0, -0.5, 0.25])


def identity(log_weights: torch.Tensor) -> torch.Tensor:
    return log_weights.exp()


def sampled_gradient(loss) -> list[float]:
    """Gradient by the policy's logits of the loss of every token, weighted as the behaviour policy samples it."""
    logits = POLICY.clone().requires_grad_()
    (BEHAVIOUR.exp() * loss(logits.log_softmax(0))).sum().backward()
    return logits.grad.tolist()


def true_gradient() -> list[float]:
    """Gradient of minus the expected reward."""
    logits = POLICY.clone().requires_grad_()
    (-(logits.softmax(0) * REWARDS).sum()).backward()
    return logits.grad.tolist()


def loss_of(pair) -> torch.Tensor:
    ratio, weight = pair
    return weight * clipped(ratio, REWARDS, **WIDE)


OLD = POLICY.log_softmax(0)


@pytest.mark.parametrize(
    "loss",
    [
        lambda x: loss_of(mismatch.decoupled(x, OLD, BEHAVIOUR, identity)),
        lambda x: loss_of(mismatch.bypass(x, BEHAVIOUR)),
        lambda x: mismatch.weighted_reinforce(x, BEHAVIOUR, REWARDS, cap=1e6),
    ],
)
def test_corrected_samples_give_the_true_policy_gradient(loss):
    assert true_gradient() == pytest.approx(sampled_gradient(loss), abs=1e-12)


def test_uncorrected_samples_do_not():
    assert true_gradient() != pytest.approx(sampled_gradient(lambda x: reinforce(x, REWARDS)), abs=1e-2)


def test_counting_twice_does_not():
    def twice(logprobs):
        ratio, _ = mismatch.bypass(logprobs, BEHAVIOUR)
        return (OLD - BEHAVIOUR).exp() * clipped(ratio, REWARDS, **WIDE)

    assert true_gradient() != pytest.approx(sampled_gradient(twice), abs=1e-2)


def test_the_mean_weight_is_one_over_behaviour_samples():
    assert 1.0 == pytest.approx(float((BEHAVIOUR.exp() * (OLD - BEHAVIOUR).exp()).sum()), abs=1e-12)


@pytest.mark.parametrize("pair", [mismatch.decoupled(new, old, roll, identity), mismatch.bypass(new, roll)])
def test_ratio_times_weight_is_policy_over_behaviour(pair):
    ratio, weight = pair
    assert (new - roll).exp().tolist() == pytest.approx((ratio * weight).tolist(), abs=1e-12)


def two_step_gradient(weigh) -> list[float]:
    """Policy gradient of R(a, b) over two binary tokens, samples drawn from another policy and weighted."""
    logits, other = f64([0.3, -0.7, 0.2]).requires_grad_(), f64([-0.5, 0.4, 0.9])
    total = torch.zeros(()).double()
    for a, b in itertools.product((0, 1), repeat=2):
        policy, behaviour = ([(2 * t - 1) * z[i] for t, i in ((a, 0), (b, 1 + a))] for z in (logits, other))
        x, y = (torch.nn.functional.logsigmoid(torch.stack(z)) for z in (policy, behaviour))
        weights = weigh((x - y).detach())
        total = total - y.sum().exp() * (weights * x).sum() * (1.0 + 2 * a - 3 * b + a * b)
    total.backward()
    return logits.grad.tolist()


def exact_two_step_gradient() -> list[float]:
    logits = f64([0.3, -0.7, 0.2]).requires_grad_()
    total = torch.zeros(()).double()
    for a, b in itertools.product((0, 1), repeat=2):
        x = torch.nn.functional.logsigmoid(torch.stack([(2 * a - 1) * logits[0], (2 * b - 1) * logits[1 + a]]))
        total = total - x.sum().exp() * (1.0 + 2 * a - 3 * b + a * b)
    total.backward()
    return logits.grad.tolist()


def sequence(log_weights: torch.Tensor) -> torch.Tensor:
    return mismatch.sequence_log_weights(log_weights, torch.zeros(2).long(), 1).exp()[[0, 0]]


def geometric(log_weights: torch.Tensor) -> torch.Tensor:
    return mismatch.geometric_log_weights(log_weights, torch.zeros(2).long(), 1).exp()[[0, 0]]


def test_the_product_of_a_rows_weights_is_unbiased():
    assert exact_two_step_gradient() == pytest.approx(two_step_gradient(sequence), abs=1e-12)


@pytest.mark.parametrize("weigh", [torch.exp, geometric, torch.ones_like])
def test_token_weights_and_geometric_means_are_not(weigh):
    assert exact_two_step_gradient() != pytest.approx(two_step_gradient(weigh), abs=1e-3)


def test_weights_carry_no_gradient():
    leaf = old.clone().requires_grad_()
    _, weight = mismatch.decoupled(new, leaf, roll, mismatch.truncated)
    assert not weight.requires_grad
    assert not mismatch.weighted_reinforce(new, roll, A).requires_grad


def test_equal_policies_leave_the_loss_alone():
    ratio, weight = mismatch.decoupled(new, old, old, mismatch.truncated)
    assert [1.0] * 13 == weight.tolist()
    assert (new - old).exp().tolist() == ratio.tolist()


def test_bounds_are_inclusive():
    assert [True, True] == mismatch.inside(f64([0.5, 2.0]).log(), low=0.5, high=2.0 + 1e-12).tolist()


def test_truncation_leaves_small_weights_and_clamping_raises_them():
    small = f64([0.1]).log()
    assert 0.1 == pytest.approx(float(mismatch.truncated(small)))
    assert 0.5 == pytest.approx(float(mismatch.clamped(small, low=0.5, high=2)))


def test_a_long_row_does_not_overflow():
    log_weights = torch.full((5000,), 1.0)
    total = mismatch.sequence_log_weights(log_weights, torch.zeros(5000).long(), 1)
    assert 2.0 == pytest.approx(float(mismatch.truncated(total)))
    assert [False] == mismatch.inside(total, high=2.0).tolist()
    assert 0.0 == float(mismatch.banded(total, high=2.0))


def test_geometric_mean_of_an_empty_row_is_one():
    assert 0.0 == float(mismatch.geometric_log_weights(old - roll, SAMPLES, COUNT + 1)[COUNT])
