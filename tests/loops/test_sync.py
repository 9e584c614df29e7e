"""Online training on a tiny model: stations in order, records, filters, failures, and stopping."""

import asyncio
import dataclasses

import pytest

from posttrain.errors import Interrupted, RewardError
from posttrain.loops import sync
from posttrain.records.ledger import State as Place
from posttrain.rollouts.group import Tally
from posttrain.types import Outcome
from tests.loops.sessions import open_session
from tests.rollouts.fakes import FakeReward
from tests.toy_runs import Listener, same, weights


@pytest.fixture
def told():
    return Listener()


@pytest.fixture
def session(tmp_path, told):
    with open_session(tmp_path / "run", progress=told) as found:
        yield found


def with_reward(session, function):
    parts = tuple(dataclasses.replace(part, reward=FakeReward(function)) for part in session.rubric.parts)
    session.rubric = type(session.rubric)(parts)
    return session


def train(session):
    asyncio.run(sync.train(session))
    return session.journal.run.metrics.read()


def test_the_stations_in_order(session, told):
    asyncio.run(sync.step(session))
    assert [["draw"], ["generate"], ["judge"], ["build"], ["learn"], ["carry"], ["record"]] == told.of("station")


def test_a_run_has_one_record_per_batch(session):
    assert [(1, 1), (2, 2)] == [(record.step, record.version) for record in train(session)]


def test_weights_move(session):
    before = weights(session.learner.model)
    train(session)
    assert not same(before, weights(session.learner.model))


def test_the_engine_follows_the_learner(session):
    train(session)
    assert (2, 2) == (session.engine.version, session.learner.version)


def test_fresh_rollouts_are_not_stale(session):
    assert [0.0, 0.0] == [record.metrics["staleness/max"] for record in train(session)]


def test_the_state_moves_with_the_record(session):
    train(session)
    assert (2, 4) == (session.state.step, session.state.position)


def test_every_prompt_is_trained_once(session):
    train(session)
    entries = session.journal.run.ledger.entries()
    assert [(0, 1), (1, 1), (2, 2), (3, 2)] == [(e.position, e.step) for e in entries if e.state is Place.TRAINED]


def test_rollouts_are_stored(session):
    train(session)
    assert 2 == len(list((session.journal.run.path / "rollouts").glob("*.parquet")))


def test_progress_hears_everything(session, told):
    train(session)
    counts = {name: len(told.of(name)) for name in ("begin", "rollouts", "sample", "step", "end")}
    assert {"begin": 1, "rollouts": 16, "sample": 2, "step": 2, "end": 1} == counts


def test_rollouts_are_counted_to_the_total(session, told):
    asyncio.run(sync.step(session))
    assert [[n, 8] for n in range(1, 9)] == told.of("rollouts")


def test_equal_rewards_move_nothing(tmp_path):
    with open_session(tmp_path / "run", algorithm={"kl_coefficient": 0.0}) as session:
        with_reward(session, lambda rollout: 0.7)
        before = weights(session.learner.model)
        records = train(session)
        assert (True, 0, 8.0) == (
            same(before, weights(session.learner.model)),
            session.learner.version,
            records[0].metrics["samples/still"],
        )


def test_a_batch_that_moves_nothing_is_trained_all_the_same(tmp_path):
    with open_session(tmp_path / "run", algorithm={"kl_coefficient": 0.0}) as session:
        train(with_reward(session, lambda rollout: 0.7))
        assert 4 == session.journal.run.ledger.counts()[Place.TRAINED]


def test_filtered_groups_are_dropped_and_counted(tmp_path):
    with open_session(tmp_path / "run", algorithm={"drop_degenerate": True}) as session:
        records = train(with_reward(session, lambda rollout: 0.7))
        assert (4, 2.0) == (session.journal.run.ledger.counts()[Place.DROPPED], records[0].metrics["groups/dropped"])


def test_failed_rollouts_are_left_out_and_counted(session):
    with_reward(session, lambda rollout: Outcome.FAILED if rollout.index == 0 else float(rollout.index))
    assert [2.0, 2.0] == [record.metrics["rollouts/failed"] for record in train(session)]


def test_too_many_failures_stop_the_run_untrained(session):
    with_reward(session, lambda rollout: Outcome.TIMEOUT if rollout.index < 3 else 1.0)
    with pytest.raises(RewardError, match=r"6 of 8 rollouts have no reward"):
        train(session)
    assert (0, 0) == (session.learner.version, session.state.step)


@pytest.mark.parametrize(("kept", "limit", "stops"), [(4, 0.5, False), (3, 0.5, True), (0, 1.0, False)])
def test_the_limit_of_failures(kept, limit, stops):
    tally = Tally(rollouts=8, kept=kept, reasons={"part: why": 8 - kept})
    if not stops:
        assert None is sync.refuse_broken_rewards(tally, limit)
        return
    with pytest.raises(RewardError, match="5 x part: why"):
        sync.refuse_broken_rewards(tally, limit)


def test_a_stop_is_heard_before_the_next_step(session):
    session.stop.ask("enough")
    with pytest.raises(Interrupted):
        train(session)
    assert 0 == session.state.step


def test_a_stop_is_heard_while_rollouts_run(session):
    class Asking(FakeReward):
        async def score(self, rollouts, task):
            session.stop.ask("enough")
            await asyncio.Event().wait()

    parts = tuple(dataclasses.replace(part, reward=Asking(None)) for part in session.rubric.parts)
    session.rubric = type(session.rubric)(parts)
    with pytest.raises(Interrupted):
        train(session)
    assert (0, [["end"]]) == (session.learner.version, [["end"] for _ in session.progress.of("end")])


def test_the_same_seed_gives_the_same_weights(tmp_path):
    found = []
    for name in ("one", "two"):
        with open_session(tmp_path / name) as session:
            train(session)
            found.append(weights(session.learner.model))
    assert same(*found)


def test_epochs_and_minibatches_make_more_versions(tmp_path):
    with open_session(tmp_path / "run", batches={"epochs": 2, "minibatches": 2}) as session:
        records = train(session)
        assert ([4, 8], True) == ([r.version for r in records], "ratio/mean" in records[0].metrics)
