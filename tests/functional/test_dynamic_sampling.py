"""Accounting before and after the filter."""

import math

import pytest
import torch

from posttrain.functional.dynamic_sampling import account, valid_probability
from tests.golden.fixtures import f64

RIGHT, WRONG, MIXED = f64([1, 1]), f64([0, 0]), f64([1, 0])


def test_groups_are_taken_in_the_order_they_were_asked_for():
    actual = account([MIXED, f64([1, 0, 0, 0]), MIXED], target=2)
    assert (2, 1, 6) == (actual.kept, actual.surplus, actual.trained)


def test_why_groups_were_dropped():
    actual = account([RIGHT, WRONG, WRONG, MIXED], target=4)
    assert (1, 2, 0.25) == (actual.solve_all, actual.solve_none, actual.acceptance)


def test_equal_fractional_rewards_in_float32_are_dropped():
    assert 0 == account([torch.full((7,), 0.7)], target=1).kept


def test_both_mean_rewards_are_kept():
    actual = account([RIGHT, RIGHT, MIXED], target=3)
    assert (5 / 6, 0.5) == (pytest.approx(actual.reward_before), actual.reward_after)


def test_nothing_sampled():
    actual = account([], target=3)
    assert (0, 0, 0) == (actual.kept, actual.generated, actual.solve_none)
    assert math.isnan(actual.acceptance)


@pytest.mark.parametrize("pass_rate", [0.0, 0.3, 1.0])
def test_probability_by_enumeration(pass_rate):
    expected = sum(math.comb(4, k) * pass_rate**k * (1 - pass_rate) ** (4 - k) for k in range(1, 4))
    assert expected == pytest.approx(valid_probability(pass_rate, 4), abs=1e-12)
