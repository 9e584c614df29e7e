"""The greedy rollout beside a group, and what the environment scored turn by turn."""

import asyncio
import dataclasses

import pytest

from posttrain.protocols import EnvStep
from posttrain.rollouts.group import roll_batch, roll_group
from posttrain.rollouts.run import run_rollout
from posttrain.types import Outcome, Sampling
from tests.rollouts.fakes import FakeChat, FakeEngine, FakeReward, RecordingEnv, make_task
from tests.rollouts.test_group import make_roller


def group(roller, seeds=(1, 2, 9)):
    return asyncio.run(roll_group(7, make_task(), seeds=seeds, roller=roller, greedy=True))


def temperatures(engine):
    return {seed: sampling.temperature for _, sampling, seed in engine.requests}


def test_the_last_seed_is_rolled_at_temperature_0():
    engine = FakeEngine(["a"])
    group(make_roller(engine))
    assert {1: 1.0, 2: 1.0, 9: 0.0} == temperatures(engine)


def test_it_is_scored_and_no_member():
    made, tally = group(make_roller(FakeEngine(["abc"])))
    assert ([0, 1], 2, 3.0) == ([r.index for r in made.rollouts], made.greedy.index, made.greedy.reward)
    assert (3, 3, 0) == (tally.rollouts, tally.kept, made.failed)


def test_it_has_the_same_weights_as_the_group():
    engine = FakeEngine(["a"])
    engine.version = 4
    made, _ = group(make_roller(engine))
    assert 9 == made.greedy.seed
    assert all(version >= 4 for version in made.greedy.segments[0].versions if version >= 0)


def test_it_is_scored_alone():
    seen = []

    class Noting(FakeReward):
        async def score(self, rollouts, task):
            seen.append(len(rollouts))
            return await super().score(rollouts, task)

    group(make_roller(FakeEngine(["a"]), Noting(lambda rollout: 1.0)))
    assert [1, 2] == sorted(seen)


def failing_at_zero(engine):
    """A judge that fails on what was said at temperature 0."""
    cold = {seed for seed, temperature in temperatures(engine).items() if temperature == 0}
    return lambda rollout: Outcome.FAILED if rollout.seed in cold else 1.0


def test_a_group_without_a_greedy_reward_comes_back_empty():
    engine = FakeEngine(["a"])
    made, tally = group(make_roller(engine, lambda rollout: failing_at_zero(engine)(rollout)))
    assert ((), None, 2) == (made.rollouts, made.greedy, made.failed)
    assert (3, 0, 1) == (tally.rollouts, tally.kept, tally.empty_groups)


def test_a_batch_gives_each_group_one_more_seed():
    engine = FakeEngine(["a"])
    made, tally = asyncio.run(
        roll_batch(
            [(p, make_task(f"task{p}")) for p in (0, 1)],
            group_size=2,
            seed_of=lambda p, i: 100 * p + i,
            roller=make_roller(engine),
            greedy=True,
        )
    )
    assert {2: 0.0, 102: 0.0} == {s: t for s, t in temperatures(engine).items() if t == 0}
    assert ([2, 2], 6) == ([len(g.rollouts) for g in made], tally.rollouts)


def test_without_it_groups_have_none():
    made, _ = asyncio.run(roll_group(0, make_task(), seeds=(1,), roller=make_roller(FakeEngine(["a"]))))
    assert made.greedy is None


STEPS = [
    EnvStep(reply=({"role": "user", "content": "more"},), scores={"gold": 1.0, "hits": 2.0}),
    EnvStep(reply=({"role": "user", "content": "more"},)),
    EnvStep(terminated=True, scores={"gold": 0.5}),
]


@pytest.fixture
def played():
    return asyncio.run(
        run_rollout(
            make_task(),
            0,
            1,
            env_factory=lambda: RecordingEnv(STEPS),
            engine=FakeEngine(["go"]),
            chat=FakeChat(),
            sampling=Sampling(max_new_tokens=9),
            max_turns=3,
        )
    )


def test_scores_are_kept_turn_by_turn(played):
    assert ({"gold": 1.0, "hits": 2.0}, {}, {"gold": 0.5}) == played.turn_scores


def test_their_sums_are_the_scores(played):
    assert {"gold": 1.5, "hits": 2.0} == {score.name: score.value for score in played.scores}
    assert dataclasses.replace(played, turn_scores=()).scores == played.scores
