"""Importance ratios: value one on policy, closed-form gradients, clamp, row independence."""

import math

import pytest
import torch

from posttrain.functional.ratios import sequence_ratio, straight_through_sequence_ratio, token_ratio
from tests.golden.fixtures import COUNT, COUNTS, SAMPLES, new, old


def test_ratio_of_equal_logprobs_is_exactly_one():
    assert [1.0] * len(new) == token_ratio(new, new).tolist()


def test_ratio_is_clamped():
    far = torch.tensor([50.0, -50.0], dtype=torch.float64)
    assert [math.exp(20), math.exp(-20)] == pytest.approx(token_ratio(far, torch.zeros_like(far)).tolist())


def test_token_ratio_gradient_is_the_ratio():
    logprobs = new.clone().requires_grad_()
    ratio = token_ratio(logprobs, old)
    ratio.sum().backward()
    assert ratio.tolist() == pytest.approx(logprobs.grad.tolist(), abs=1e-12)


def test_sequence_ratio_of_an_empty_row_is_exactly_one():
    assert 1.0 == sequence_ratio(new, old, SAMPLES, COUNT + 1)[COUNT]


def test_sequence_ratio_gradient_is_shared_by_the_tokens_of_the_row():
    logprobs = new.clone().requires_grad_()
    ratio = sequence_ratio(logprobs, old, SAMPLES, COUNT)
    ratio.sum().backward()
    assert (ratio / COUNTS)[SAMPLES].tolist() == pytest.approx(logprobs.grad.tolist(), abs=1e-12)


def test_straight_through_has_the_sequence_value():
    expected = sequence_ratio(new, old, SAMPLES, COUNT)[SAMPLES]
    assert expected.tolist() == straight_through_sequence_ratio(new, old, SAMPLES, COUNT).tolist()


def test_straight_through_gradient_reaches_only_the_token():
    logprobs = new.clone().requires_grad_()
    ratio = straight_through_sequence_ratio(logprobs, old, SAMPLES, COUNT)
    ratio.sum().backward()
    assert ratio.tolist() == pytest.approx(logprobs.grad.tolist(), abs=1e-12)


def test_a_long_row_does_not_overflow():
    logprobs = torch.full((100_000,), 1.0)
    rows = torch.zeros(100_000, dtype=torch.int64)
    assert math.e == pytest.approx(float(sequence_ratio(logprobs, torch.zeros_like(logprobs), rows, 1)), rel=1e-5)
