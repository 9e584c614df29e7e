"""Batches that nobody scores: rollouts are kept without a reward, and the step's numbers do not speak of one."""

import asyncio

import pytest

from posttrain.loops.numbers import group_numbers
from posttrain.rollouts.group import Roller, roll_batch
from posttrain.rollouts.rubric import Part, Rubric
from posttrain.types import Sampling
from tests.rollouts.fakes import FakeChat, FakeEngine, FakeReward, RecordingEnv, make_task


def roll(replies=("ok", "no"), rubric=None, env=RecordingEnv):
    """Two tasks, two rollouts each."""
    roller = Roller(
        env_factory=env,
        engine=FakeEngine(replies),
        chat=FakeChat(),
        sampling=Sampling(max_new_tokens=9),
        rubric=rubric,
    )
    drawn = [(0, make_task("a")), (1, make_task("b"))]
    return asyncio.run(roll_batch(drawn, group_size=2, seed_of=lambda p, i: 10 * p + i, roller=roller))


def test_every_rollout_is_kept_without_a_reward():
    groups, tally = roll()
    assert [None] * 4 == [rollout.reward for group in groups for rollout in group.rollouts]
    assert (4, 4, 0, 0) == (tally.rollouts, tally.kept, tally.failed, tally.unscored)


def test_a_rollout_that_broke_is_still_dropped():
    groups, tally = roll([OSError("gone"), "ok"])
    assert [1, 1] == [len(group.rollouts) for group in groups]
    assert (2, 2) == (tally.broken, tally.failed)


def test_the_numbers_do_not_speak_of_rewards():
    numbers = group_numbers(roll()[0], version=3)
    assert not [name for name in numbers if name.startswith(("reward", "pass_rate", "groups/all", "groups/equal"))]
    assert (2.0, 3.0, 12.0) == (numbers["groups/count"], numbers["length/mean"], numbers["tokens/sampled"])


def test_scored_groups_have_them():
    rubric = Rubric([Part(reward=FakeReward(lambda rollout: float(rollout.text == "ok")), name="fake")])
    numbers = group_numbers(roll(rubric=rubric)[0], version=3)
    assert 0.5 == pytest.approx(numbers["reward/mean"])
