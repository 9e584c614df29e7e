"""GiGPO: states seen once, loops, and the episode mean over trajectories."""

import pytest
import torch

from posttrain.functional.groups import centred
from posttrain.functional.step_groups import gigpo, step_advantages
from tests.golden.fixtures import f64

TRAJECTORIES = torch.tensor([0, 0, 0, 1, 1])
REWARDS = f64([0, 0, 10, 0, 0])


def test_states_seen_once_leave_only_the_episode_level():
    actual = gigpo(f64([10, 0]), REWARDS, TRAJECTORIES, torch.arange(5))
    assert centred(f64([10, 0]))[TRAJECTORIES].tolist() == actual.tolist()


def test_omega_zero_leaves_only_the_episode_level():
    actual = gigpo(f64([10, 0]), REWARDS, TRAJECTORIES, torch.tensor([0, 1, 2, 0, 1]), omega=0.0)
    assert [5.0, 5.0, 5.0, -5.0, -5.0] == actual.tolist()


def test_a_state_met_twice_in_one_trajectory_joins_its_group():
    assert [1.0, -1.0, 0.0] == step_advantages(f64([3, 1, 2]), torch.tensor([0, 0, 0])).tolist()


def test_equal_returns_from_a_state_move_nothing():
    assert [0.0] * 4 == step_advantages(torch.full((4,), 0.7), torch.tensor([3, 3, 3, 8]), scale=True).tolist()


def test_scaling_divides_by_the_deviation_of_the_state():
    actual = step_advantages(f64([3, 1, 5]), torch.tensor([0, 0, 1]), scale=True, epsilon=0)
    assert [2**-0.5, -(2**-0.5), 0.0] == pytest.approx(actual.tolist())


def test_labels_may_be_any_integers():
    few, many = torch.tensor([0, 1, 2, 0, 1]), torch.tensor([-5, 900, 7, -5, 900])
    assert step_advantages(REWARDS, few).tolist() == step_advantages(REWARDS, many).tolist()
