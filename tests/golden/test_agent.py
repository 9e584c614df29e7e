"""Golden numbers of agents, length, filters and compaction: golden_agent.json, every key."""

import math

import pytest
import torch

from posttrain.functional import dynamic_sampling, overlong, process, ratios, returns, staleness
from posttrain.functional.groups import centred, degenerate, standardised
from posttrain.functional.reduce import token_weights
from posttrain.functional.surrogates import dppo_keep
from tests.golden.fixtures import SAMPLES, TURNS, f64, golden, new, old, plain, same, uncovered

GOLDEN = golden("agent")
GROUPS = [[1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 0, 1], [1, 1, 1, 1]]
GROUPS += [[0, 1, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1]]
OUTCOMES, TURN_REWARDS = f64([1, 0, 1, 0]), f64([0.2, 0.4, 0, 0.2])
SEGMENT_ROLLOUTS, SEGMENT_TOKENS = torch.tensor([0, 0, 0, 1, 2, 2]), torch.tensor([40, 60, 30, 50, 20, 20])
ROLLOUT_A = centred(f64([1, 0, 0]))
VERSIONS = torch.tensor([3, 3, 4, 4, 5, 5, 5, 2, 3])
VERSION_ROWS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2])


def punishment(length: int, **options) -> float:
    return float(overlong.soft_punishment(torch.tensor([length]), limit=20480, buffer=4096, **options))


def accounting() -> dict:
    counted = dynamic_sampling.account([f64(group) for group in GROUPS], target=4)
    return {
        "target_groups": 4,
        "valid_per_batch": [sum(not degenerate(f64(g)) for g in part) for part in (GROUPS[:6], GROUPS[6:])],
        "kept": counted.kept,
        "surplus": counted.surplus,
        "trajectories_generated": counted.generated,
        "trajectories_trained": counted.trained,
        "solve_all": counted.solve_all,
        "solve_none": counted.solve_none,
        "prefilter_mean_reward": counted.reward_before,
        "postfilter_mean_reward(first 4 valid)": counted.reward_after,
        "acceptance": counted.acceptance,
    }


def tv_example(p_old: float, p_new: float, advantage: float) -> list:
    keep = dppo_keep(f64([p_new]).log(), f64([p_old]).log(), f64([advantage]))
    return [p_old, p_new, advantage, bool(keep), p_new / p_old]


def mt_grpo() -> list[torch.Tensor]:
    before, after = process.outcome_and_turn(OUTCOMES, TURN_REWARDS, torch.ones(4, dtype=torch.bool))
    no_tool, _ = process.outcome_and_turn(OUTCOMES, TURN_REWARDS, torch.zeros(4, dtype=torch.bool))
    return [after, before - after, no_tool]


def fold() -> torch.Tensor:
    bonuses = f64([0, -1, 0.2, 0, 0, 0, 0, 0, -0.2, 0, -1, 0])
    return process.outcome_with_bonus(OUTCOMES, bonuses, torch.arange(4).repeat_interleave(3)).reshape(4, 3)


def compaction(mode: str) -> torch.Tensor:
    """Loss of -A per token over the segments, in one of the reductions."""
    weights = token_weights(mode, SEGMENT_TOKENS, rollouts=SEGMENT_ROLLOUTS)
    return (-ROLLOUT_A[SEGMENT_ROLLOUTS] * weights * SEGMENT_TOKENS).sum()


def stale_rows() -> torch.Tensor:
    return staleness.staleness(VERSIONS, VERSION_ROWS, 3, 5)


CASES = {
    "overlong.Lmax20480.cache4096": lambda: {str(n): punishment(n) for n in (1, 16384, 17408, 18432, 20480, 21000)},
    "overlong.uncapped(verl) at 21000": lambda: punishment(21000, capped=False),
    "dynsamp.accounting": accounting,
    "dynsamp.p_valid(G=8)": lambda: {
        str(p): dynamic_sampling.valid_probability(p, 8) for p in (0.01, 0.1, 0.5, 0.9, 0.99)
    },
    "dppo_tv.examples(p_old,p_new,A)->keep, ratio": lambda: [
        tv_example(*case) for case in ((0.3, 0.6, 1), (0.001, 0.01, 1), (0.6, 0.3, -1), (0.9, 0.75, -1), (0.3, 0.6, -1))
    ],
    "mt_grpo.A_outcome,A_turn,A_combined": mt_grpo,
    "mt_grpo.tokens of row 0: before tool result / after / row without tool call": lambda: [
        (mt_grpo()[0] + mt_grpo()[1])[0],
        mt_grpo()[0][0],
        mt_grpo()[2][0],
    ],
    "foldgrpo.adv(clip [0,1], ddof1, eps1e-6)": fold,
    "compaction.adv_by_rollout_then_broadcast": lambda: [ROLLOUT_A, ROLLOUT_A[SEGMENT_ROLLOUTS]],
    "compaction.std_mode": lambda: standardised(f64([1, 0, 0])),
    "compaction.weight token-mean": lambda: compaction("token-mean"),
    "compaction.weight mean over segments": lambda: compaction("seq-mean-token-mean"),
    "compaction.weight mean over rollouts of token-mean inside the rollout": lambda: compaction("rollout-mean"),
    "compaction.segment_loss_factor for rollout reducer (1/(n_rollouts * tokens_of_rollout))": lambda: token_weights(
        "rollout-mean", SEGMENT_TOKENS, rollouts=SEGMENT_ROLLOUTS
    )[[0, 3, 4]],
    "turn_ratio.row0 [turn1(pos0,1), turn2(pos3,4)]": lambda: ratios.turn_ratio(new, old, SAMPLES, TURNS)[[0, 2]],
    "turn_return.g0.9": lambda: returns.turn_returns(
        f64([0.1, 0, 1]), torch.zeros(3, dtype=torch.int64), torch.arange(3), discount=0.9
    ),
    "staleness.keep(max<=2)": lambda: stale_rows() <= 2,
    "areal.capacity trace bs=4 eta=1: (version,accepted,running)->free": lambda: [
        [v, a, r, staleness.free_slots(concurrent=100, running=r, accepted=a, bound=1, version=v, batch=4)]
        for v, a, r in ((0, 0, 0), (0, 4, 2), (0, 4, 4), (1, 4, 4), (1, 8, 4), (2, 12, 0))
    ],
}
TRAPS = {
    "compaction.WRONG_group_over_segments(mean shifts to 0.5)": lambda: ROLLOUT_A[SEGMENT_ROLLOUTS],
    "turn_ratio.product_form": CASES["turn_ratio.row0 [turn1(pos0,1), turn2(pos3,4)]"],
}
ELSEWHERE = {
    "staleness per sample: max,mean,min over tokens at version 5": "we bound by the oldest token; its column is tested",
    "dynsamp.float_noise_trap: std>0 on [0.7]*7 float32": "tested below: our filter looks at max - min",
    "foldgrpo.int8_trap: +-0.2 cast to int8": "tested below: bonuses stay floats",
    "lora.params r=1,8 for 4x(1024,1024)+2x(1024,4096)+(4096,1024)": "LoRA belongs to models and plan",
    "lora.scaling alpha/r, rslora alpha/sqrt(r), alpha=32 r=1,16": "LoRA belongs to models",
    "tinker.lora_lr(hidden 4096) llama,qwen": "a recipe's learning rate, not a function of the loss",
    "triage.slopes reward, validation": "belongs to the doctor",
    "toolrl.correctness": "belongs to rewards",
    "shaping.potential: sum of F over an episode = -Phi(s0)": "belongs to rewards",
    "shaping.step_penalty_trap: p(success)=0.3, R=1, cost c per step, 5 steps -> value of acting": "belongs to rewards",
}


@pytest.mark.parametrize("key", CASES)
def test_value_is_the_golden_one(key):
    assert same(GOLDEN[key], plain(CASES[key]()))


@pytest.mark.parametrize("key", TRAPS)
def test_known_fault_is_not_ours(key):
    assert not same(GOLDEN[key], plain(TRAPS[key]()))


def test_staleness_counts_the_oldest_token():
    oldest = [row[0] for row in GOLDEN["staleness per sample: max,mean,min over tokens at version 5"]]
    assert oldest == stale_rows().tolist()


def test_filter_does_not_fall_for_rounding():
    deviation, span = GOLDEN["dynsamp.float_noise_trap: std>0 on [0.7]*7 float32"]
    assert deviation > 0 == span
    assert degenerate(torch.full((7,), 0.7, dtype=torch.float32))


def test_small_process_bonuses_survive():
    assert 0.2 / (f64([1, 0, 1, 0]).std() + 1e-6) == pytest.approx(float(fold()[0, 0] - fold()[2, 2]))
    assert math.isclose(float(fold()[2, 2]), GOLDEN["foldgrpo.adv(clip [0,1], ddof1, eps1e-6)"][2][2], abs_tol=1e-9)


def test_every_key_is_covered():
    assert set() == uncovered("agent", CASES, TRAPS, ELSEWHERE)
