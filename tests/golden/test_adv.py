"""Golden advantages: golden_adv.json, every key."""

import pytest
import torch

from posttrain.functional import groups, process, returns, step_groups, whiten
from posttrain.functional.groups import standardised
from tests.golden.fixtures import (
    COUNT,
    COUNTS,
    MASK,
    REWARD,
    SAMPLES,
    f64,
    golden,
    old,
    plain,
    ref,
    same,
    spread,
    uncovered,
)

GOLDEN = golden("adv")
TOKEN_REWARDS = returns.with_kl(returns.token_rewards(REWARD, SAMPLES), old, ref, 0.1)
RETURNS = returns.returns_to_go(TOKEN_REWARDS, SAMPLES, COUNT)
PARTS = f64([[1, 0, 1, 0], [0, 1, 1, 1]])
STEP_REWARDS = f64([0, 0, 10, 0, 0])
TRAJECTORIES, STATES = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 1, 2, 0, 1])
STEP_RETURNS = returns.returns_to_go(STEP_REWARDS, TRAJECTORIES, 2, discount=0.95)


def in_pairs(estimate, rewards: torch.Tensor) -> torch.Tensor:
    """Two groups of two."""
    return torch.cat([estimate(rewards[:2]), estimate(rewards[2:])])


def by_trajectory(steps: torch.Tensor) -> list[torch.Tensor]:
    return [steps[:3], steps[3:]]


def process_advantages() -> torch.Tensor:
    """Step rewards end at (row, column) as in the fixture; flat places count sampled tokens only."""
    ends = [(0, 1), (0, 4), (1, 1), (1, 2), (2, 0), (2, 2), (2, 3), (3, 1)]
    flat = spread(torch.arange(len(SAMPLES)))
    places = torch.tensor([int(flat[end]) for end in ends])
    rewards = f64([0.2, 0.9, 0.1, 0.0, 0.6, 0.7, 1.0, 0.3])
    return process.process_supervision(rewards, places, SAMPLES, COUNT)


def gdpo_sum() -> torch.Tensor:
    weights = f64([1, 0.5])
    return torch.cat([groups.parts_standardised(PARTS[:, half], weights) for half in (slice(0, 2), slice(2, 4))])


def rpp_baseline(by: str) -> torch.Tensor:
    return whiten.whiten(groups.centred(REWARD)[SAMPLES], SAMPLES, COUNT, by=by)


CASES = {
    "grpo.ddof1.eps1e-6": lambda: standardised(REWARD),
    "grpo.ddof0.eps1e-6": lambda: standardised(REWARD, ddof=0),
    "grpo.ddof1.eps1e-4(TRL)": lambda: standardised(REWARD, epsilon=1e-4),
    "grpo.two_groups.ddof1": lambda: in_pairs(standardised, REWARD),
    "drgrpo": lambda: groups.centred(REWARD),
    "grpo.all_equal": lambda: standardised(f64([1, 1, 1, 1])),
    "rloo": lambda: groups.leave_one_out(REWARD),
    "rloo_over_drgrpo_ratio": lambda: groups.leave_one_out(REWARD) / groups.centred(REWARD),
    "kl_k1_tokens(old-ref)*mask": lambda: spread(old - ref),
    "token_rewards.k1.beta0.1": lambda: spread(TOKEN_REWARDS),
    "reinforcepp.returns.gamma1": lambda: spread(RETURNS),
    "reinforcepp.returns.gamma0.9": lambda: spread(returns.returns_to_go(TOKEN_REWARDS, SAMPLES, COUNT, discount=0.9)),
    "reinforcepp.adv.ddof1": lambda: spread(whiten.whiten(RETURNS, SAMPLES, COUNT)),
    "reinforcepp.adv.ddof0(OpenRLHF)": lambda: spread(whiten.whiten(RETURNS, SAMPLES, COUNT, ddof=0)),
    "reinforcepp_baseline.adv(token-weighted whitening)": lambda: spread(rpp_baseline("token")),
    "reinforcepp_baseline.adv(sequence-weighted)": lambda: whiten.rows_whitened(
        groups.centred(REWARD), SAMPLES, COUNT, by="sequence"
    ),
    "remax.adv": lambda: spread(
        returns.against_greedy(returns.token_rewards(REWARD, SAMPLES), SAMPLES, COUNT, f64([0.5] * 4))
    ),
    "opo.baseline": lambda: REWARD[0] - groups.length_weighted(REWARD, COUNTS)[0],
    "opo.adv": lambda: groups.length_weighted(REWARD, COUNTS),
    "maxrl.adv": lambda: groups.mean_scaled(REWARD),
    "grpo_process.adv": lambda: spread(process_advantages()),
    "gdpo.sum_of_normalised(two groups)": gdpo_sum,
    "gdpo.batch_normalised.ddof1": lambda: groups.batch_standardised(gdpo_sum()),
    "gigpo.step_returns": lambda: by_trajectory(STEP_RETURNS),
    "gigpo.episode_adv.paper(mean over trajectories)": lambda: groups.centred(f64([10, 0])),
    "gigpo.step_adv": lambda: by_trajectory(step_groups.step_advantages(STEP_RETURNS, STATES)),
    "gigpo.joint(paper, omega=1)": lambda: by_trajectory(
        step_groups.gigpo(f64([10, 0]), STEP_REWARDS, TRAJECTORIES, STATES)
    ),
    "gigpo.episode_adv.std_mode": lambda: standardised(f64([10, 0])),
}
TRAPS = {
    "grpo.all_equal.float_noise": lambda: standardised(f64([0.1, 0.1, 0.1])),
    "gigpo.episode_adv.verl_agent_default(mean over step rows)": lambda: groups.centred(f64([10, 0])),
    "nemo.loo_mean_loo_std([1,0,0,0]) (trap)": lambda: standardised(f64([1, 0, 0, 0])),
}
NOT_APPLICABLE = {
    "std_of_three_0.1": "a fact about rounding, the reason for the exact zero",
    "grpo_process.mean_std_ddof1": "an intermediate of grpo_process.adv",
}


@pytest.mark.parametrize("key", CASES)
def test_value_is_the_golden_one(key):
    assert same(GOLDEN[key], plain(CASES[key]()))


@pytest.mark.parametrize("key", TRAPS)
def test_known_fault_is_not_ours(key):
    assert GOLDEN[key] != plain(TRAPS[key]())


def test_equal_rewards_are_exactly_zero_where_rounding_would_not_be():
    assert [0.0] * 3 == plain(TRAPS["grpo.all_equal.float_noise"]())


def test_every_key_is_covered():
    assert set() == uncovered("adv", CASES, TRAPS, NOT_APPLICABLE)


def test_no_reward_is_lost_on_a_tool_token():
    assert float(REWARD.sum()) == float(returns.token_rewards(REWARD, SAMPLES).sum())
    assert not bool(MASK[0, 2])
