"""Rewards to advantages by TRL's own code, and RLOO from rewards to gradient."""

import dataclasses

import pytest
import torch

from posttrain.types import Outcome, Score
from tests.crosscheck import material, ours, sampled
from tests.crosscheck.theirs import assert_same, found

EPSILON = {"epsilon": 1e-4}
EQUAL = ((0.3, 0.3, 0.3, 0.3), (0.0, 1.0, 0.0, 0.0))
PARTS = {"right": material.REWARDS, "form": ((3.0, 1.0, 3.0, 2.0), (0.0, 0.0, 5.0, 1.0))}


def flat(plug, groups):
    return [float(a) for row in plug.advantages(groups) for a in row]


def theirs(**options):
    return sampled.scored(sampled.online(**options))["advantages"].double().tolist()


def with_parts(weights=(1.0, 1.0)):
    """The groups with two reward parts."""
    groups = []
    for place, group in enumerate(material.online_groups()):
        scored = [
            dataclasses.replace(r, scores=tuple(_score(part, PARTS[part][place][r.index]) for part in PARTS))
            for r in group.rollouts
        ]
        groups.append(dataclasses.replace(group, rollouts=tuple(scored)))
    return groups


def _score(name, value):
    return Score(name=name, value=value, outcome=Outcome.SCORED)


@pytest.mark.parametrize("rewards", [material.REWARDS, EQUAL])
@pytest.mark.parametrize(
    ("options", "plug"),
    [
        ({}, ("grpo", EPSILON)),
        ({"scale_rewards": "none"}, ("dr_grpo", {})),
        ({"scale_rewards": "none"}, ("grpo", {"scale": "none"})),
    ],
)
def test_one_reward(rewards, options, plug):
    actual = flat(ours.algorithm(plug[0], **plug[1]), material.online_groups(rewards))
    assert theirs(rewards=rewards, **options) == pytest.approx(actual, abs=1e-5)


def test_parts_standardised_apart():
    options = {"multi_objective_aggregation": "normalize_then_sum", "reward_weights": [1.0, 0.5]}
    plug = ours.algorithm("gdpo", weights={"right": 1.0, "form": 0.5}, **EPSILON)
    assert theirs(rewards=PARTS, **options) == pytest.approx(flat(plug, with_parts()), abs=1e-5)


@pytest.mark.parametrize("rewards", [(0.1,) * 4, (0.7,) * 4])
def test_rounding_of_equal_rewards_is_exactly_zero_here_and_small_there(rewards):
    """TRL divides what float32 leaves of the mean by 1e-4; posttrain asks first whether the rewards differ at all."""
    table = (rewards, rewards)
    assert [0.0] * 8 == flat(ours.algorithm("grpo", **EPSILON), material.online_groups(table))
    assert theirs(rewards=table) == pytest.approx([0.0] * 8, abs=1e-3)


def test_epsilon_is_the_only_difference_of_the_defaults():
    """TRL's advantage is (std + 1e-6) / (std + 1e-4) times posttrain's."""
    groups = material.online_groups()
    std = torch.tensor(material.REWARDS, dtype=torch.float64).std(dim=1).repeat_interleave(4)
    scaled = torch.tensor(flat(ours.algorithm("grpo"), groups), dtype=torch.float64) * (std + 1e-6) / (std + 1e-4)
    assert theirs() == pytest.approx(scaled.tolist(), abs=1e-5)


class TestRLOO:
    """TRL keeps PPO's clip around a ratio of whole answers; on the batch that sampled them it is REINFORCE."""

    def theirs(self, **options):
        trainer = sampled.online("RLOO", **options)
        batch = sampled.scored(trainer)
        return batch["advantages"], found(trainer._compute_loss(trainer.model, batch), trainer.model)

    def mine(self, *, reference=None, **options):
        plug = ours.algorithm("rloo", **options)
        return ours.evaluate(plug, material.online_groups(), material.policy(), reference=reference)

    def test_advantages(self):
        mine = flat(ours.algorithm("rloo", kl_coefficient=0.0), material.online_groups())
        assert self.theirs()[0].tolist() == pytest.approx(mine, abs=1e-5)

    @pytest.mark.parametrize("beta", [0.0, 0.05])
    def test_gradient(self, beta):
        theirs = self.theirs(beta=beta, reference=material.reference())[1]
        mine = self.mine(kl_coefficient=beta, reference=material.reference())
        assert_same(theirs, dataclasses.replace(mine, loss=theirs.loss))

    def test_its_loss_is_minus_the_mean_advantage_where_posttrain_weighs_log_probabilities(self):
        advantages, theirs = self.theirs(beta=0.05, reference=material.reference())
        assert theirs.loss == pytest.approx(-float(advantages.mean()), abs=1e-6)
        mine = self.mine(kl_coefficient=0.05, reference=material.reference())
        assert mine.loss != pytest.approx(theirs.loss, abs=1e-3)
