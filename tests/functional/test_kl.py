"""KL estimators: values, token gradients, and the expected gradients over an enumerated categorical policy."""

import math

import pytest
import torch

from posttrain.functional.kl import ESTIMATORS, k1, k2, k3, k3_k2
from tests.golden.fixtures import f64, new, ref

LOGITS = f64([0.3, -0.2, 0.9])
REFERENCE = f64([1.0, 0.0, -0.5]).log_softmax(0)


def expected_gradient(loss) -> list[float]:
    """Gradient by the logits of sum_v p(v) loss(log p(v)), the sampling probabilities p held fixed."""
    logits = LOGITS.clone().requires_grad_()
    logprobs = logits.log_softmax(0)
    (logprobs.detach().exp() * loss(logprobs)).sum().backward()
    return logits.grad.tolist()


def gradient_of(function) -> list[float]:
    """Gradient by the logits of an exact function of the distribution."""
    logits = LOGITS.clone().requires_grad_()
    function(logits.log_softmax(0)).backward()
    return logits.grad.tolist()


def reverse_kl(logprobs):
    return (logprobs.exp() * (logprobs - REFERENCE)).sum()


def forward_kl(logprobs):
    return (REFERENCE.exp() * (REFERENCE - logprobs)).sum()


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_k1_and_k3_are_unbiased(name):
    logprobs = LOGITS.log_softmax(0)
    estimate = (logprobs.exp() * ESTIMATORS[name](logprobs, REFERENCE)).sum()
    assert float(reverse_kl(logprobs)) == pytest.approx(float(estimate), abs=1e-12)


def test_k1_as_a_loss_has_no_gradient():
    assert [0.0] * 3 == pytest.approx(expected_gradient(lambda x: k1(x, REFERENCE)), abs=1e-12)


@pytest.mark.parametrize("estimate", [k2, k3_k2])
def test_k2_as_a_loss_has_the_gradient_of_kl_to_the_reference(estimate):
    assert gradient_of(reverse_kl) == pytest.approx(expected_gradient(lambda x: estimate(x, REFERENCE)), abs=1e-12)


def test_k3_as_a_loss_has_the_gradient_of_the_opposite_kl():
    assert gradient_of(forward_kl) == pytest.approx(expected_gradient(lambda x: k3(x, REFERENCE)), abs=1e-12)


def test_k3_gradient_differs_from_the_right_one():
    assert gradient_of(reverse_kl) != pytest.approx(expected_gradient(lambda x: k3(x, REFERENCE)), abs=1e-2)


def test_k3_k2_has_exactly_the_value_of_k3():
    assert k3(new, ref).tolist() == k3_k2(new, ref).tolist()


def test_k3_k2_gradient_is_the_log_ratio():
    logprobs = new.clone().requires_grad_()
    k3_k2(logprobs, ref).sum().backward()
    assert (new - ref).tolist() == pytest.approx(logprobs.grad.tolist(), abs=1e-12)


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_equal_policies_give_exactly_zero(name):
    assert [0.0] * len(new) == ESTIMATORS[name](new, new).tolist()


@pytest.mark.parametrize("name", ["k2", "k3", "k3_k2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_never_negative(name, dtype):
    x = torch.linspace(-30, 30, 4001).to(dtype)
    assert bool((ESTIMATORS[name](x, torch.zeros_like(x)) >= 0).all())


def test_k3_keeps_its_digits_near_zero_in_float32():
    assert 5e-9 == pytest.approx(float(k3(torch.tensor(1e-4), torch.tensor(0.0))), rel=1e-3)


def test_k3_is_bounded_where_the_policy_has_left_the_reference():
    assert math.exp(20) - 1 - 20 == pytest.approx(float(k3(torch.tensor(-30.0).double(), torch.tensor(0.0))))


@pytest.mark.parametrize("x", [-30.0, -20.5])
def test_k3_gradient_beyond_the_bound_never_pushes_further_away(x):
    logprob = torch.tensor(x, requires_grad=True)
    k3(logprob, torch.tensor(0.0)).backward()
    assert 0.0 == float(logprob.grad)


@pytest.mark.parametrize("x", [-5.0, -0.1, 0.3, 25.0])
def test_k3_gradient_is_one_minus_the_inverse_ratio(x):
    logprob = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    k3(logprob, torch.tensor(0.0)).backward()
    assert 1 - math.exp(-x) == pytest.approx(float(logprob.grad), abs=1e-12)
