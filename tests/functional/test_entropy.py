"""Exact entropy, its gradient, and why the sampled -log p is no bonus."""

import math

import pytest
import torch

from posttrain.functional.entropy import entropy
from tests.golden.fixtures import f64

LOGITS = f64([2.0, 1.0, 0.0, -1.0])


def test_uniform_is_the_log_of_the_size():
    assert math.log(7) == pytest.approx(float(entropy(torch.zeros(7))))


def test_it_is_torchs_entropy():
    assert float(torch.distributions.Categorical(logits=LOGITS).entropy()) == pytest.approx(float(entropy(LOGITS)))


def test_leading_dimensions_stay():
    assert (2, 3) == tuple(entropy(torch.zeros(2, 3, 5)).shape)


def test_gradient_in_closed_form():
    logits = LOGITS.clone().requires_grad_()
    value = entropy(logits)
    value.backward()
    p = LOGITS.softmax(0)
    assert (-p * (p.log() + value.detach())).tolist() == pytest.approx(logits.grad.tolist(), abs=1e-12)


def test_ruled_out_tokens_count_for_nothing_and_have_no_gradient():
    logits = torch.cat([LOGITS, f64([-math.inf])]).requires_grad_()
    value = entropy(logits)
    value.backward()
    assert float(entropy(LOGITS)) == pytest.approx(float(value.detach()))
    assert bool(logits.grad.isfinite().all())


def test_large_logits_do_not_overflow():
    assert 0.0 == pytest.approx(float(entropy(f64([1e4, 0.0]))), abs=1e-9)


def test_the_sampled_estimate_has_no_expected_gradient():
    logits = LOGITS.clone().requires_grad_()
    logprobs = logits.log_softmax(0)
    (logprobs.detach().exp() * -logprobs).sum().backward()
    assert [0.0] * 4 == pytest.approx(logits.grad.tolist(), abs=1e-12)
