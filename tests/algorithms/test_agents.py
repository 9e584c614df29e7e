"""Algorithms that look inside a rollout: process rewards, turns, states, parts, and the greedy baseline."""

import dataclasses

import pytest
import torch

from posttrain.algorithms.clip_cov import ClipCov, Config
from posttrain.algorithms.gigpo import turn_states
from posttrain.errors import RewardError
from tests.algorithms.family import group_of, make, rollout, samples_of, scores, segment


def agent(index, reward, *states, earned=()):
    """A rollout of one sampled token per turn that was shown these states."""
    said = [{"role": "user", "content": state} for state in states]
    messages = tuple(m for s in said for m in (s, {"role": "assistant", "content": "go"}))
    row = segment([1, 0] * len(states), turns=list(range(len(states))))
    scored = tuple({"env": value} for value in earned)
    return rollout(index, reward, row, messages=messages, turn_count=len(states), turn_scores=scored)


def advantages(name, *rollouts, **options):
    return [a.tolist() for a in make(name, **options).advantages([group_of(*rollouts)])[0]]


def test_states_are_what_the_environment_said_before_each_turn():
    first, second = turn_states(agent(0, 1.0, "a", "b"))
    assert "a" in first
    assert "b" in second
    assert "go" not in first + second


def test_examples_in_the_prompt_are_part_of_the_first_state():
    one = agent(0, 1.0, "a", "b")
    shown = ({"role": "assistant", "content": "an example"}, *one.messages)
    states = turn_states(dataclasses.replace(one, messages=shown))
    assert ["an example" in state for state in states] == [True, False]


def test_a_state_met_once_adds_nothing():
    found = advantages("gigpo", agent(0, 1.0, "a", "b"), agent(1, 0.0, "a", "c"), discount=1.0)
    assert [[1.0, 0.5], [-1.0, -0.5]] == found


def test_without_the_step_level_it_is_centred_rewards():
    found = advantages("gigpo", agent(0, 1.0, "a", "b"), agent(1, 0.0, "a", "b"), omega=0.0)
    assert [[0.5, 0.5], [-0.5, -0.5]] == found


def test_what_a_turn_earned_goes_to_it():
    one, other = agent(0, 1.0, "a", "b", earned=(1.0, 0.0)), agent(1, 1.0, "a", "b", earned=(0.0, 1.0))
    assert [[0.0, -0.5], [0.0, 0.5]] == advantages("gigpo", one, other, discount=1.0)


def test_turn_scores_are_process_rewards():
    one, other = agent(0, 1.0, "a", "b", earned=(1.0, 0.0)), agent(1, 0.0, "a", "b", earned=(0.0, 0.0))
    found = advantages("grpo_process", one, other, epsilon=0.0)
    assert [[1.0, -0.5], [-1.0, -0.5]] == [pytest.approx(row, abs=1e-12) for row in found]


def test_a_part_without_steps_is_refused():
    with pytest.raises(RewardError, match="'prm' gave rollout 0"):
        advantages("grpo_process", rollout(0, 1.0), rollout(1, 0.0), part="prm")


@pytest.mark.parametrize("end", [-1, 2, 50])
def test_a_step_outside_the_rollout_is_refused(end):
    (score,) = scores(prm=0.0)
    judged = rollout(0, 1.0, scores=(dataclasses.replace(score, steps=((end, 1.0),)),))
    with pytest.raises(RewardError, match="2 sampled tokens"):
        advantages("grpo_process", judged, judged, part="prm")


def test_a_large_part_does_not_swallow_a_small_one():
    members = [
        rollout(i, 100 * a + b, scores=scores(a=100 * a, b=b)) for i, (a, b) in enumerate([(0, 1), (1, 0), (0, 0)])
    ]
    (up, down, low) = advantages("gdpo", *members)
    assert up == pytest.approx(down, abs=1e-4)
    assert low < 0


def test_a_part_that_does_not_apply_gives_nothing():
    members = [rollout(i, 0.0, scores=scores(a=a)) for i, a in enumerate((1.0, 0.0, None))]
    up, down, left = advantages("gdpo", *members)
    assert (0.0, up) == pytest.approx((left, -down), abs=1e-12)


def test_the_weights_of_parts_are_the_configs():
    members = [rollout(i, 0.0, scores=scores(a=a, b=b)) for i, (a, b) in enumerate([(1.0, 0.0), (0.0, 1.0)])]
    assert [0.0, 0.0] == advantages("gdpo", *members)
    up, down = advantages("gdpo", *members, weights={"b": 0.5})
    assert up > 0 > down


def test_gdpo_without_batches_is_nothing():
    assert [] == make("gdpo").advantages([])


def test_remax_refuses_a_group_without_a_greedy_rollout():
    with pytest.raises(RewardError, match="greedy"):
        advantages("remax", rollout(0, 1.0))


def test_remax_learns_from_one_rollout():
    group = group_of(rollout(0, 1.0), greedy=rollout(1, 0.25))
    assert [[0.75]] == [[float(a) for a in row] for row in make("remax").advantages([group])]
    assert make("remax").needs.greedy


def test_maxrl_refuses_negative_rewards():
    with pytest.raises(RewardError, match="at least 0"):
        advantages("maxrl", rollout(0, -1.0), rollout(1, 1.0))


def test_maxrl_weighs_a_rare_success_more():
    rare = advantages("maxrl", *(rollout(i, float(i == 0)) for i in range(8)))
    common = advantages("maxrl", *(rollout(i, float(i < 4)) for i in range(8)))
    assert rare[0] == pytest.approx(7.0, abs=1e-4)
    assert common[0] == pytest.approx(1.0, abs=1e-4)


def test_opo_weighs_the_baseline_by_sampled_tokens():
    long = rollout(0, 1.0, segment([1] * 6 + [0] * 90))
    assert [0.25, -0.75] == pytest.approx(advantages("opo", long, rollout(1, 0.0)), abs=1e-12)


def test_reinforce_takes_nothing_or_the_batchs_mean():
    members = (rollout(0, 1.0), rollout(1, 0.5))
    assert [1.0, 0.5] == advantages("reinforce", *members)
    assert [0.25, -0.25] == advantages("reinforce", *members, baseline="batch_mean")


def test_clip_covs_draw_depends_on_seed_and_groups_alone():
    from_seed = {seed: chosen(seed) for seed in range(6)}
    assert chosen(0) == from_seed[0]
    assert len({tuple(c) for c in from_seed.values()}) > 1


def chosen(seed):
    algorithm = ClipCov(Config(share=0.1, low=-9.0, high=9.0), seed=seed)
    group = group_of(*(rollout(i, r, segment([1] * 10)) for i, r in enumerate((1.0, 0.0))))
    return [bool(c) for s in samples_of(algorithm, group, **flat(20)) for c in s.selected[s.loss_mask]]


def flat(count):
    values = torch.linspace(-2, -1, count, dtype=torch.float64)
    return {"old": values, "ref": values}
