"""Process rewards: degenerate groups, where credit flows, and a group's own statistics."""

import pytest
import torch

from posttrain.functional.process import outcome_and_turn, outcome_with_bonus, process_supervision
from tests.golden.fixtures import f64

SAMPLES = torch.tensor([0, 0, 0, 1, 1])


def test_a_token_collects_the_steps_that_end_at_or_after_it():
    actual = process_supervision(f64([1, 0, 0.5]), torch.tensor([0, 2, 4]), SAMPLES, 2, epsilon=0)
    assert [0.0, -1.0, -1.0, 0.0, 0.0] == pytest.approx(actual.tolist(), abs=1e-12)


def test_equal_step_rewards_move_nothing_however_many_steps():
    actual = process_supervision(torch.full((3,), 0.7), torch.tensor([0, 2, 4]), SAMPLES, 2)
    assert [0.0] * 5 == actual.tolist()


def test_two_steps_may_end_on_one_token():
    actual = process_supervision(f64([1, 0, 0.5]), torch.tensor([2, 2, 4]), SAMPLES, 2, epsilon=0)
    assert [0.0] * 5 == pytest.approx(actual.tolist(), abs=1e-12)


def test_turn_reward_counts_only_before_the_tool_result():
    before, after = outcome_and_turn(f64([1, 0]), f64([0, 1]), torch.tensor([True, True]), epsilon=0)
    assert [0.0, 0.0] == pytest.approx(before.tolist(), abs=1e-12)
    assert [2**-0.5, -(2**-0.5)] == pytest.approx(after.tolist())


def test_without_a_tool_both_parts_are_the_standardised_sum():
    before, after = outcome_and_turn(f64([1, 0]), f64([0, 1]), torch.tensor([False, False]))
    assert ([0.0, 0.0], [0.0, 0.0]) == (before.tolist(), after.tolist())


def test_no_bonus_is_grpo():
    rewards = f64([1, 0, 1, 0])
    expected = (rewards - 0.5) / (rewards.std() + 1e-6)
    assert expected.tolist() == outcome_with_bonus(rewards, torch.zeros(4).double(), torch.arange(4)).tolist()


@pytest.mark.parametrize("outcome", [0.0, 1.0, 0.7])
def test_a_group_of_equal_outcomes_is_not_blown_up_by_bonuses(outcome):
    bonuses = f64([0.2, -0.2, 0.1, -1])
    assert [0.0] * 4 == outcome_with_bonus(torch.full((4,), outcome).double(), bonuses, torch.arange(4)).tolist()
