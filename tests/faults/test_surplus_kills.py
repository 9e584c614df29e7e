"""Runs that fill their batches up: killed while groups wait for a later batch, they go on to the same bits."""

import signal

import pytest

from posttrain.records.checkpoints import newest_complete
from posttrain.records.ledger import State
from posttrain.records.rollout_store import RolloutStore
from tests.faults.commands import Fault
from tests.faults.same_run import assert_same_run, entries, rows
from tests.faults.workplace import PROMPTS, STEPS

SYNC, CHECKPOINTS = "posttrain.loops.sync", "posttrain.records.checkpoints"
MOMENTS = {
    "in a later draw": Fault(target=f"{SYNC}:draw", call=7),
    "before judging": Fault(target=f"{SYNC}:judge", call=4),
    "after learning": Fault(target=f"{SYNC}:learn", call=4, when="after"),
    "before recording": Fault(target=f"{SYNC}:record", call=4),
    "after recording": Fault(target="posttrain.records.journal:Journal.record", call=4, when="after"),
    "while a checkpoint is sealed": Fault(target=f"{CHECKPOINTS}:seal", call=3),
    "after a checkpoint": Fault(target=f"{CHECKPOINTS}:seal", call=3, when="after"),
}


def waiting(run):
    """Positions that the newest checkpoint keeps for later."""
    found = newest_complete(run / "checkpoints").checkpoint
    store = RolloutStore(found.path / "surplus")
    return [group.position for group in store.read(found.step)] if store.steps() else []


def kill_and_resume(workplace, run, fault):
    died = workplace.train("refill", run, faults=[fault])
    assert -signal.SIGKILL == died.code, died.err or died.out
    resumed = workplace.resume(run)
    assert (0, "") == (resumed.code, resumed.err)
    assert_same_run(workplace.whole("refill"), run)


def test_the_run_has_surplus_and_loses_no_prompt(workplace):
    run = workplace.whole("refill")
    steps = rows(run / "metrics.jsonl")
    assert steps[2]["groups/surplus"] > 0
    assert steps[3]["groups/carried"] > 0
    found = entries(run)
    assert list(range(len(found))) == [entry.position for entry in found]
    assert STEPS * PROMPTS == sum(entry.state is State.TRAINED for entry in found)
    assert waiting(run) == [entry.position for entry in found if entry.state is State.SCORED]


FAST = "before recording"


def test_a_killed_run_trains_what_waited_once_and_as_it_was(workplace, tmp_path):
    kill_and_resume(workplace, tmp_path / "run", MOMENTS[FAST])


@pytest.mark.slow
@pytest.mark.parametrize("moment", sorted(set(MOMENTS) - {FAST}))
def test_a_kill_at_any_moment_changes_nothing(workplace, tmp_path, moment):
    kill_and_resume(workplace, tmp_path / "run", MOMENTS[moment])
