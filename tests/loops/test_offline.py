"""Offline training on a tiny model: demonstrations in the order, records, and a stop at a loss."""

import asyncio

import pytest

from posttrain.errors import Diverged
from posttrain.loops import offline
from posttrain.records.ledger import State as Place
from posttrain.tasks.source import task_set
from posttrain.types import StepStats
from tests.loops.sessions import open_session
from tests.toy_runs import ROWS, Listener


def train(session):
    asyncio.run(offline.train(session))
    return session.journal.run.metrics.read()


@pytest.fixture
def told():
    return Listener()


@pytest.fixture
def session(tmp_path, told):
    with open_session(tmp_path / "run", "sft", progress=told, run={"steps": 4}) as found:
        yield found


def test_the_stations_in_order(session, told):
    asyncio.run(offline.step(session))
    assert [["draw"], ["build"], ["learn"], ["carry"], ["record"]] == told.of("station")


def test_the_loss_falls(session):
    records = train(session)
    assert records[-1].metrics["loss"] < records[0].metrics["loss"]


def test_every_demonstration_is_trained_in_order(session):
    train(session)
    entries = session.journal.run.ledger.entries()
    assert [(p, Place.TRAINED, p // 3 + 1) for p in range(12)] == [(e.position, e.state, e.step) for e in entries]


def test_an_epoch_shows_each_task_once(tmp_path):
    tasks = task_set(ROWS, for_imitation=True)
    with open_session(tmp_path / "run", "sft", tasks=tasks, run={"steps": 2}) as session:
        train(session)
        assert sorted(task.id for task in tasks) == sorted(e.task_id for e in session.journal.run.ledger.entries())


def test_the_stop_token_is_imitated(session):
    (group, *_) = offline.draw(session)
    (segment,) = group.rollouts[0].segments
    assert (True, True) == (segment.loss_mask[-1], segment.ids[-1] in session.chat.stop_ids)


def test_no_rollouts_are_stored(session):
    train(session)
    assert [] == list((session.journal.run.path / "rollouts").iterdir())


def test_records_hold_no_engine_numbers(session):
    names = set(train(session)[0].metrics)
    assert (set(), True) == (
        names & {"reward/mean", "logprob_gap/mean", "tokens_per_second/generate"},
        {"loss", "length/mean", "grad_norm", "entropy"} <= names,
    )


def test_training_ends_at_a_loss(tmp_path):
    with open_session(tmp_path / "run", "sft", run={"steps": 50, "stop_at_loss": 100.0}) as session:
        assert (5, 5) == (len(train(session)), session.state.step)


def test_a_loss_that_is_not_reached_stops_nothing(tmp_path):
    with open_session(tmp_path / "run", "sft", run={"steps": 6, "stop_at_loss": 1e-6}) as session:
        assert 6 == len(train(session))


def test_the_last_checkpoint_is_written_where_the_loss_ends_it(tmp_path):
    with open_session(tmp_path / "run", "sft", run={"steps": 50, "stop_at_loss": 100.0}) as session:
        train(session)
        assert ["step-000005"] == [path.name for path in session.journal.run.checkpoints.iterdir()]


def test_non_finite_steps_stop_the_run_with_the_batch_kept(session):
    session.learner.step = lambda: StepStats(grad_norm=float("inf"), learning_rate=0.1, skipped=True)
    session.recipe = session.recipe.model_copy(
        update={"run": session.recipe.run.model_copy(update={"max_nonfinite": 2})}
    )
    with pytest.raises(Diverged, match="The batch is kept in"):
        train(session)
    assert ["step-000002.parquet"] == [path.name for path in (session.journal.run.path / "kept").iterdir()]
