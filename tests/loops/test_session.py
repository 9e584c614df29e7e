"""What a session does between steps: checkpoints, evaluations, non-finite steps, the clock and the step's numbers."""

import asyncio

import pytest

from posttrain.errors import Diverged, Interrupted
from posttrain.loops.session import Clock, State, peak_memory, silent, step_numbers
from posttrain.loops.update import Update
from posttrain.types import Stat, StepStats
from tests.loops.sessions import open_session
from tests.records.examples import build_group
from tests.toy_runs import Listener


def stats(skipped=False):
    return StepStats(grad_norm=2.0, learning_rate=0.1, skipped=skipped, version=1)


def update_of(*skips, **numbers):
    return Update(
        stats={name: Stat(kind="sum", value=value) for name, value in numbers.items()},
        steps=tuple(stats(skip) for skip in skips),
        computed=12,
        still=3,
    )


@pytest.fixture
def session(tmp_path):
    with open_session(tmp_path / "run", run={"steps": 4, "checkpoint_every": 3, "max_nonfinite": 3}) as found:
        yield found


def steps_of_checkpoints(session):
    return sorted(int(path.name[5:]) for path in session.journal.run.checkpoints.iterdir())


def end_of(session, step):
    session.state.step = step
    asyncio.run(session.end_of_step())


@pytest.mark.parametrize(("step", "expected"), [(1, []), (2, []), (3, [3]), (4, [4])])
def test_checkpoints_are_written_when_due_and_at_the_end(session, step, expected):
    end_of(session, step)
    assert expected == steps_of_checkpoints(session)


def test_a_checkpoint_holds_the_state(session):
    session.state = State(step=3, position=6, nonfinite=1)
    session.checkpoint()
    found, _ = session.journal.resume(session.learner)
    assert {"step": 3, "position": 6, "nonfinite": 1}.items() <= found.state.items()


def test_the_state_comes_back(session):
    session.restore({"step": 3, "position": 6, "nonfinite": 1, "algorithm": {}})
    assert State(step=3, position=6, nonfinite=1) == session.state


@pytest.mark.parametrize(("every", "steps"), [(0, [4]), (2, [2, 4]), (3, [3, 4])])
def test_evaluations_are_made_when_due_and_at_the_end(tmp_path, every, steps):
    evaluation = {"tasks": {"generator": "addition", "split": "test", "limit": 2}, "every": every}
    made = []

    async def evaluate(session):
        made.append(session.state.step)
        return {}

    with open_session(tmp_path / "run", run={"steps": 4, "checkpoint_every": 9}, evaluation=evaluation) as session:
        session.evaluate = evaluate
        for step in range(1, 5):
            end_of(session, step)
    assert steps == made


def test_an_evaluation_can_be_stopped(tmp_path):
    async def evaluate(session):
        session.stop.ask("enough")
        await asyncio.Event().wait()

    evaluation = {"tasks": {"generator": "addition", "split": "test", "limit": 2}}
    with open_session(tmp_path / "run", evaluation=evaluation) as session:
        session.evaluate = evaluate
        with pytest.raises(Interrupted):
            end_of(session, 2)


def test_skipped_steps_in_a_row_are_counted(session):
    session.count_nonfinite(update_of(False, True, True), [], [])
    assert 2 == session.state.nonfinite


def test_a_good_step_ends_the_row(session):
    session.count_nonfinite(update_of(True, True, False), [], [])
    assert 0 == session.state.nonfinite


def test_a_batch_without_steps_changes_no_count(session):
    session.state.nonfinite = 2
    session.count_nonfinite(update_of(), [], [])
    assert 2 == session.state.nonfinite


def test_too_many_in_a_row_stop_the_run_and_keep_the_batch(session):
    session.state.nonfinite = 2
    with pytest.raises(Diverged, match="3 optimizer steps in a row"):
        session.count_nonfinite(update_of(True), [build_group()], [])
    assert ["step-000001.parquet"] == [path.name for path in (session.journal.run.path / "kept").iterdir()]


def test_a_clock_times_stations_and_tells_progress():
    told = Listener()
    clock = Clock(told)
    with clock("draw"), clock("learn"):
        pass
    with clock("draw"):
        pass
    assert ([["draw"], ["learn"], ["draw"]], ["learn", "draw"]) == (told.of("station"), list(clock.seconds))


def test_a_clock_keeps_the_time_of_a_station_that_failed():
    clock = Clock(silent())
    with pytest.raises(KeyError), clock("draw"):
        raise KeyError
    assert clock.seconds["draw"] >= 0


def numbers(update, *stations, generated=0.0):
    clock = Clock(silent())
    clock.seconds = dict.fromkeys(stations, 2.0)
    return step_numbers(update, clock, generated)


def test_numbers_of_a_step():
    found = numbers(update_of(False, True, **{"loss": 0.5, "tokens/trained": 8.0}), "generate", "learn", generated=10.0)
    expected = {
        "loss": 0.5,
        "grad_norm": 2.0,
        "learning_rate": 0.1,
        "steps/nonfinite": 1.0,
        "tokens/computed": 12.0,
        "samples/still": 3.0,
        "seconds/generate": 2.0,
        "tokens_per_second/generate": 5.0,
        "tokens_per_second/train": 4.0,
    }
    assert expected.items() <= found.items()


def test_a_batch_without_steps_has_no_gradient():
    assert "grad_norm" not in numbers(update_of(), "learn")


def test_memory_is_in_megabytes():
    assert 10 < peak_memory() < 10**6


def test_silence_takes_everything():
    assert None is silent().whatever(1, 2, 3)
