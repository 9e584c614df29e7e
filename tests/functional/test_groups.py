"""Group advantages: exact zero for equal rewards and singletons, shift and scale behaviour."""

import pytest
import torch

from posttrain.functional.groups import (
    batch_standardised,
    best_over_second,
    centred,
    degenerate,
    leave_one_out,
    length_weighted,
    mean_scaled,
    parts_standardised,
    standardised,
)

REWARDS = torch.tensor([1.0, 0.0, 1.0, 0.5], dtype=torch.float64)
CENTRED = (centred, leave_one_out, standardised)


def opo(rewards):
    return length_weighted(rewards, torch.arange(1, len(rewards) + 1))


def maxrl(rewards):
    return mean_scaled(rewards.abs())


ESTIMATORS = (*CENTRED, opo, maxrl, best_over_second, batch_standardised)


@pytest.mark.parametrize("estimate", ESTIMATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.7, 0.1, 1 / 3, 1e6 + 0.1, -0.7])
@pytest.mark.parametrize("size", [2, 3, 7])
def test_equal_rewards_give_exactly_zero(estimate, dtype, value, size):
    assert [0.0] * size == estimate(torch.full((size,), value, dtype=dtype)).tolist()


def test_seven_float32_rewards_would_not_without_the_check():
    rewards = torch.full((7,), 0.7, dtype=torch.float32)
    assert float(rewards.std()) > 0 or float((rewards - rewards.mean()).abs().max()) > 0


@pytest.mark.parametrize("estimate", ESTIMATORS)
def test_a_singleton_moves_nothing(estimate):
    assert [0.0] == estimate(torch.tensor([5.0])).tolist()


@pytest.mark.parametrize("estimate", ESTIMATORS)
def test_an_empty_group_is_empty(estimate):
    assert [] == estimate(torch.zeros(0)).tolist()


@pytest.mark.parametrize("estimate", CENTRED)
def test_a_constant_shift_changes_nothing(estimate):
    assert estimate(REWARDS).tolist() == pytest.approx(estimate(REWARDS + 3.0).tolist(), abs=1e-12)


@pytest.mark.parametrize("estimate", CENTRED)
def test_advantages_sum_to_zero(estimate):
    assert pytest.approx(0.0, abs=1e-12) == float(estimate(REWARDS).sum())


@pytest.mark.parametrize("estimate", CENTRED)
def test_order_of_rollouts_permutes_the_advantages(estimate):
    order = torch.tensor([2, 0, 3, 1])
    assert estimate(REWARDS)[order].tolist() == pytest.approx(estimate(REWARDS[order]).tolist(), abs=1e-15)


def test_scale_leaves_the_standardised_ones_up_to_epsilon():
    assert standardised(REWARDS, epsilon=0).tolist() == pytest.approx(
        standardised(10 * REWARDS, epsilon=0).tolist(), abs=1e-12
    )


def test_scale_scales_the_centred_ones():
    assert (10 * centred(REWARDS)).tolist() == pytest.approx(centred(10 * REWARDS).tolist(), abs=1e-12)


def test_leave_one_out_is_the_reward_minus_the_mean_of_the_others():
    expected = [float(REWARDS[i] - (REWARDS.sum() - REWARDS[i]) / 3) for i in range(4)]
    assert expected == pytest.approx(leave_one_out(REWARDS).tolist(), abs=1e-12)


def test_a_lone_winner_is_scaled_like_everyone():
    winner = standardised(torch.tensor([1.0, 0, 0, 0], dtype=torch.float64), epsilon=0)
    assert [1.5, -0.5, -0.5, -0.5] == pytest.approx(winner.tolist(), abs=1e-12)


def test_tolerance_is_inclusive():
    rewards = torch.tensor([0.0, 0.25])
    assert degenerate(rewards, 0.25)
    assert not degenerate(rewards, 0.2)


def test_tolerance_reaches_the_estimators():
    assert [0.0, 0.0] == standardised(torch.tensor([0.0, 0.25]), tolerance=0.25).tolist()


@pytest.mark.parametrize("estimate", CENTRED)
def test_integer_rewards_are_refused_by_torch_not_truncated(estimate):
    with pytest.raises(RuntimeError, match="dtype"):
        estimate(torch.tensor([1, 0, 2]))


def test_length_weighted_baseline_balances_the_tokens():
    lengths = torch.tensor([4, 3, 4, 2])
    assert pytest.approx(0.0, abs=1e-12) == float((lengths * length_weighted(REWARDS, lengths)).sum())


def test_equal_lengths_are_plain_centring():
    assert centred(REWARDS).tolist() == pytest.approx(length_weighted(REWARDS, torch.full((4,), 7)).tolist(), abs=1e-12)


def test_without_tokens_the_plain_mean_is_the_baseline():
    assert centred(REWARDS).tolist() == length_weighted(REWARDS, torch.zeros(4)).tolist()


def test_mean_scaled_is_the_gradient_of_the_log_pass_rate():
    binary = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)
    assert [3.0, -1.0, -1.0, -1.0] == pytest.approx(mean_scaled(binary, epsilon=0).tolist())


def test_mean_scaled_refuses_negative_rewards():
    with pytest.raises(ValueError, match="at least 0"):
        mean_scaled(torch.tensor([1.0, -1.0]))


def test_best_over_second_rewards_only_the_leader():
    assert [0.0, 0.5, 0.0] == best_over_second(torch.tensor([0.5, 1.0, 0.0]), scale=False).tolist()


def test_a_tie_at_the_top_moves_nothing():
    assert [0.0, 0.0, 0.0] == best_over_second(torch.tensor([1.0, 1.0, 0.0])).tolist()


def test_best_over_second_can_be_scaled():
    rewards = torch.tensor([0.5, 1.0, 0.0], dtype=torch.float64)
    assert 0.5 / 0.5 == pytest.approx(float(best_over_second(rewards, epsilon=0)[1]))


def test_parts_count_the_same_whatever_their_scale():
    parts = torch.tensor([[1.0, 0, 1, 0], [0, 100, 100, 0]], dtype=torch.float64)
    small = torch.tensor([[1.0, 0, 1, 0], [0, 1, 1, 0]], dtype=torch.float64)
    weights = torch.ones(2)
    assert parts_standardised(small, weights, epsilon=0).tolist() == pytest.approx(
        parts_standardised(parts, weights, epsilon=0).tolist(), abs=1e-12
    )


def test_a_part_that_does_not_vary_adds_exactly_nothing():
    parts = torch.stack([REWARDS, torch.full((4,), 0.7, dtype=torch.float64)])
    assert standardised(REWARDS).tolist() == parts_standardised(parts, torch.ones(2)).tolist()
