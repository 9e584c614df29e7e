"""Groups and batches: order, overlap, counting, and an end to everything when something is wrong."""

import asyncio

import pytest

from posttrain.errors import ConfigError
from posttrain.rollouts.group import Roller, Tally, merge_tallies, roll_batch, roll_group
from posttrain.rollouts.rubric import Part, Rubric
from posttrain.types import Outcome, Sampling, Score
from tests.rollouts.fakes import FakeChat, FakeEngine, FakeReward, RecordingEnv, make_task


def make_roller(engine, judge=lambda r: float(len(r.text)), **options):
    reward = judge if hasattr(judge, "score") else FakeReward(judge)
    return Roller(
        **{
            "env_factory": RecordingEnv,
            "engine": engine,
            "chat": FakeChat(),
            "sampling": Sampling(max_new_tokens=20),
            "rubric": Rubric([Part(reward=reward, name="a")]),
        }
        | options
    )


def batch(roller, positions=(0, 1), group_size=2):
    tasks = [(position, make_task(f"task{position}")) for position in positions]
    return asyncio.run(roll_batch(tasks, group_size=group_size, seed_of=lambda p, i: 100 * p + i, roller=roller))


def group(roller, seeds=(1, 2, 3)):
    return asyncio.run(roll_group(7, make_task(), seeds=seeds, roller=roller))


def test_group_has_a_rollout_per_seed_in_order():
    made, _ = group(make_roller(FakeEngine(["a", "ab", "abc"])))
    assert [(0, 1, 1.0), (1, 2, 2.0), (2, 3, 3.0)] == [(r.index, r.seed, r.reward) for r in made.rollouts]


def test_group_knows_its_position_and_task():
    made, _ = group(make_roller(FakeEngine(["a"])))
    assert (7, "hi") == (made.position, made.task.id)


def test_order_of_rollouts_does_not_depend_on_who_finished_first():
    made, _ = group(make_roller(FakeEngine(["a", "ab", "abc"], delays=[0.03, 0.02, 0.01])))
    assert [1.0, 2.0, 3.0] == list(made.rewards)


def test_groups_come_back_by_position():
    groups, _ = batch(make_roller(FakeEngine(["a"], delays=[0.02, 0.01, 0.0])), positions=(5, 1, 3))
    assert [1, 3, 5] == [made.position for made in groups]


def test_first_requests_arrive_in_order_of_groups_and_rollouts():
    engine = FakeEngine(["a"])
    batch(make_roller(engine), positions=(3, 1, 2), group_size=3)
    assert [100 * p + i for p in (1, 2, 3) for i in range(3)] == [seed for _, _, seed in engine.requests]


def test_first_requests_arrive_in_one_tick_of_the_event_loop():
    ticks = []

    class Ticking(FakeEngine):
        async def generate(self, prompt_ids, sampling, *, seed):
            ticks.append(clock["tick"])
            return await super().generate(prompt_ids, sampling, seed=seed)

    clock = {"tick": 0}

    async def main():
        async def count():
            while True:
                clock["tick"] += 1
                await asyncio.sleep(0)

        counter = asyncio.ensure_future(count())
        tasks = [(position, make_task()) for position in range(8)]
        await roll_batch(tasks, group_size=8, seed_of=lambda p, i: i, roller=make_roller(Ticking(["a"])))
        counter.cancel()

    asyncio.run(main())
    assert (64, 1) == (len(ticks), len(set(ticks)))


def test_a_group_is_scored_while_another_still_generates():
    scored = asyncio.Event()

    class Signals(FakeReward):
        async def score(self, rollouts, task):
            scored.set()
            return await super().score(rollouts, task)

    class WaitsForScoring(FakeEngine):
        async def generate(self, prompt_ids, sampling, *, seed):
            if seed >= 100:
                await asyncio.wait_for(scored.wait(), 5)
            return await super().generate(prompt_ids, sampling, seed=seed)

    groups, _ = batch(make_roller(WaitsForScoring(["a"]), Signals(lambda r: 1.0)))
    assert [2, 2] == [len(made.rollouts) for made in groups]


def test_rollouts_that_broke_are_dropped_and_counted():
    made, tally = group(make_roller(FakeEngine(["a", RuntimeError("out of memory"), "abc"])))
    assert ([0, 2], 1) == ([r.index for r in made.rollouts], made.failed)
    assert (3, 2, 1, 0) == (tally.rollouts, tally.kept, tally.broken, tally.unscored)


def test_rollouts_whose_scoring_failed_are_dropped_and_counted():
    judge = lambda r: Outcome.TIMEOUT if r.text == "ab" else 1.0  # noqa: E731
    made, tally = group(make_roller(FakeEngine(["a", "ab", "abc"]), judge))
    assert ([0, 2], 1) == ([r.index for r in made.rollouts], made.failed)
    assert (0, 1, {"a": 1}) == (tally.broken, tally.unscored, tally.retries)


def test_rollouts_to_which_nothing_applies_are_counted_apart():
    _, tally = group(make_roller(FakeEngine(["a", "ab", "abc"]), lambda r: None if r.text == "ab" else 1.0))
    assert (1, 0) == (tally.inapplicable, tally.unscored)


def test_group_of_which_nothing_is_left_comes_back_empty_and_counted():
    groups, tally = batch(make_roller(FakeEngine([RuntimeError("x"), RuntimeError("x"), "a", "a"])))
    assert ([0, 2], 1) == ([len(made.rollouts) for made in groups], tally.empty_groups)


def test_share_that_failed():
    _, tally = batch(make_roller(FakeEngine(["a", RuntimeError("x"), "a", "a"])))
    assert (1, 0.25) == (tally.failed, tally.failed_share)


def test_share_of_nothing_is_zero():
    assert 0.0 == Tally().failed_share


def test_reasons_are_counted():
    _, tally = batch(make_roller(FakeEngine([RuntimeError("x"), RuntimeError("x"), "a", "a"])))
    ((reason, count),) = tally.reasons.items()
    assert (2, True) == (count, reason.startswith("engine: RuntimeError: x"))


def test_outcomes_are_added_over_groups():
    judge = lambda r: Outcome.UNPARSABLE if r.text == "ab" else 1.0  # noqa: E731
    _, tally = batch(make_roller(FakeEngine(["a", "ab"]), judge))
    assert {"a": {Outcome.SCORED: 2, Outcome.UNPARSABLE: 2}} == tally.outcomes
    assert 2 == tally.count(Outcome.UNPARSABLE)


def test_tallies_merge():
    one = Tally(rollouts=2, kept=1, broken=1, outcomes={"a": {Outcome.SCORED: 1}}, reasons={"x": 1})
    both = merge_tallies([one, one])
    assert Tally(rollouts=4, kept=2, broken=2, outcomes={"a": {Outcome.SCORED: 2}}, reasons={"x": 2}) == both


def test_progress_is_told_of_every_rollout_once():
    told = []
    batch(make_roller(FakeEngine(["a", RuntimeError("x")]), on_rollout=told.append), group_size=3)
    assert [(p, i) for p in (0, 1) for i in range(3)] == sorted((int(r.task.id[4:]), r.index) for r in told)


def test_an_error_of_the_set_up_stops_all_and_closes_every_environment():
    environments = []

    def make_env():
        environments.append(RecordingEnv())
        return environments[-1]

    engine = FakeEngine([ConfigError("no"), "a", "a", "a"], delays=[0, 60, 60, 60])
    with pytest.raises(ConfigError, match="no"):
        batch(make_roller(engine, env_factory=make_env))
    assert [1, 1, 1, 1] == [env.closed for env in environments]


def test_nothing_to_roll():
    assert ([], Tally()) == batch(make_roller(FakeEngine(["a"])), positions=())


def test_scores_are_those_of_the_right_rollouts_under_shuffled_ends():
    delays = [0.02, 0.0, 0.01, 0.005]
    judge = FakeReward(lambda r: Score(name="", value=float(r.seed), outcome=Outcome.SCORED))
    groups, _ = batch(make_roller(FakeEngine(["a"], delays=delays), judge), positions=(0, 1, 2))
    assert [[0.0, 1.0], [100.0, 101.0], [200.0, 201.0]] == [list(made.rewards) for made in groups]


class CountingChat(FakeChat):
    def __init__(self):
        super().__init__()
        self.rendered = 0

    def prompt_ids(self, messages, tools=None):
        self.rendered += 1
        return super().prompt_ids(messages, tools)


def test_the_prompt_of_a_group_is_rendered_once():
    chat = CountingChat()
    group(make_roller(FakeEngine(["a"]), chat=chat))
    assert 1 == chat.rendered


def test_openings_that_differ_within_a_group_are_each_rendered():
    class Counts(RecordingEnv):
        count = 0

        async def reset(self, task):
            Counts.count += 1
            return ({"role": "user", "content": str(Counts.count)},)

    engine = FakeEngine(["a"])
    group(make_roller(engine, env_factory=Counts))
    assert ["1", "2", "3"] == [chr(prompt[3]) for prompt, _, _ in engine.requests]
