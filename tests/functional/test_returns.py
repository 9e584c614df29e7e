"""Rewards on tokens and what flows back from them."""

import pytest
import torch

from posttrain.functional.masked import flatten
from posttrain.functional.returns import against_greedy, returns_to_go, token_rewards, turn_returns, with_kl
from tests.golden.fixtures import COUNT, REWARD, SAMPLES, f64, old, ref


def test_reward_sits_on_the_last_sampled_token():
    assert [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0.5] == token_rewards(REWARD, SAMPLES).tolist()


def test_reward_of_a_row_without_tokens_goes_nowhere():
    assert [1.0, 3.0] == token_rewards(f64([1, 2, 3]), torch.tensor([0, 2])).tolist()


def test_undiscounted_return_is_the_outcome_everywhere():
    assert REWARD[SAMPLES].tolist() == returns_to_go(token_rewards(REWARD, SAMPLES), SAMPLES, COUNT).tolist()


@pytest.mark.parametrize("tools", [0, 1, 10, 100, 500])
@pytest.mark.parametrize("discount", [1.0, 0.9])
def test_tool_tokens_change_no_return(tools, discount):
    mask = torch.tensor([[True] * 3 + [False] * tools + [True] * 2])
    garbage = torch.full((1, 5 + tools), float("nan"), dtype=torch.float64)
    garbage[mask] = f64([0, 0, 0.5, 0, 1])
    samples, rewards = flatten(mask, garbage)
    expected = [sum(r * discount ** (k - t) for k, r in enumerate([0, 0, 0.5, 0, 1]) if k >= t) for t in range(5)]
    assert expected == pytest.approx(returns_to_go(rewards, samples, 1, discount=discount).tolist(), abs=1e-12)


def test_kl_in_the_reward_is_k1_and_detached():
    leaf = old.clone().requires_grad_()
    actual = with_kl(torch.zeros_like(old), leaf, ref, 0.5)
    assert (-0.5 * (old - ref)).tolist() == actual.tolist()
    assert not actual.requires_grad


def test_turn_return_discounts_once_per_turn():
    rewards, turns = f64([0.25, 0.25, 0, 1]), torch.tensor([0, 0, 1, 1])
    actual = turn_returns(rewards, torch.zeros(4, dtype=torch.int64), turns, discount=0.5)
    assert [1.0, 1.0, 1.0, 1.0] == actual.tolist()


def test_greedy_baseline_is_taken_from_each_rows_own_prompt():
    rewards = token_rewards(f64([1, 0]), torch.tensor([0, 0, 1]))
    assert [0.75, 0.75, -0.5] == against_greedy(rewards, torch.tensor([0, 0, 1]), 2, f64([0.25, 0.5])).tolist()
