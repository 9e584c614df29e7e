"""No prompt is lost or trained twice."""

import sqlite3
import subprocess
import sys

import pytest

from posttrain.errors import RecordError
from posttrain.records.ledger import Ledger, State

WRITER = """
import os, signal, sys
from pathlib import Path
from posttrain.records.ledger import Ledger, State
ledger = Ledger(Path(sys.argv[1]))
for position in range(20):
    ledger.issue(position, f"task-{position}", epoch=0, version=0)
ledger.mark(range(10), State.TRAINED, step=1)
ledger._connection.execute("BEGIN IMMEDIATE")
ledger._connection.execute("UPDATE prompts SET state = 'trained'")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def ledger(tmp_path):
    opened = Ledger(tmp_path / "ledger.sqlite")
    yield opened
    opened.close()


def issue(ledger, *positions, version=0):
    for position in positions:
        ledger.issue(position, f"task-{position}", epoch=0, version=version)


def states(ledger):
    return {entry.position: entry.state.value for entry in ledger.entries()}


def test_issued_prompt_is_untrained(ledger):
    issue(ledger, 3, version=7)
    entry = ledger.untrained()[0]
    assert (3, "task-3", 0, State.ISSUED, None, 7) == (
        entry.position,
        entry.task_id,
        entry.epoch,
        entry.state,
        entry.step,
        entry.version,
    )


def test_prompt_moves_through_its_states(ledger):
    issue(ledger, 0)
    ledger.mark([0], State.ROLLED)
    ledger.mark([0], State.SCORED)
    ledger.mark([0], State.TRAINED, step=4)
    assert (State.TRAINED, 4) == (ledger.entries()[0].state, ledger.entries()[0].step)


def test_states_may_be_skipped(ledger):
    issue(ledger, 0)
    ledger.mark([0], State.TRAINED, step=1)
    assert {0: "trained"} == states(ledger)


def test_untrained_leaves_out_trained_and_dropped(ledger):
    issue(ledger, 2, 1, 0, 3)
    ledger.mark([0], State.TRAINED, step=1)
    ledger.mark([1], State.DROPPED, step=1)
    ledger.mark([3], State.SCORED)
    assert [2, 3] == [entry.position for entry in ledger.untrained()]


def test_training_twice_is_refused(ledger):
    issue(ledger, 5)
    ledger.mark([5], State.TRAINED, step=2)
    with pytest.raises(RecordError, match="position 5 was trained at step 2 already; it cannot be trained again"):
        ledger.mark([5], State.TRAINED, step=3)


def test_training_twice_in_one_call_is_refused(ledger):
    issue(ledger, 5)
    with pytest.raises(RecordError, match="cannot be trained again"):
        ledger.mark([5, 5], State.TRAINED, step=3)


def test_a_refused_mark_changes_nothing(ledger):
    issue(ledger, 0, 1)
    ledger.mark([1], State.TRAINED, step=1)
    with pytest.raises(RecordError):
        ledger.mark([0, 1], State.TRAINED, step=2)
    assert {0: "issued", 1: "trained"} == states(ledger)


def test_a_dropped_prompt_cannot_train(ledger):
    issue(ledger, 0)
    ledger.mark([0], State.DROPPED, step=1)
    with pytest.raises(RecordError, match="was dropped at step 1 already"):
        ledger.mark([0], State.TRAINED, step=2)


def test_going_backward_is_refused(ledger):
    issue(ledger, 0)
    ledger.mark([0], State.SCORED)
    with pytest.raises(RecordError, match="is scored; it cannot go back to rolled"):
        ledger.mark([0], State.ROLLED)


def test_a_prompt_never_issued_cannot_train(ledger):
    with pytest.raises(RecordError, match="position 9 was never issued"):
        ledger.mark([9], State.TRAINED, step=1)


def test_a_trained_prompt_cannot_be_issued(ledger):
    issue(ledger, 0)
    ledger.mark([0], State.TRAINED, step=1)
    with pytest.raises(RecordError, match="position 0 is trained"):
        issue(ledger, 0)


def test_an_open_prompt_may_be_issued_again(ledger):
    issue(ledger, 0)
    ledger.mark([0], State.SCORED)
    issue(ledger, 0, version=3)
    assert (State.ISSUED, 3) == (ledger.entries()[0].state, ledger.entries()[0].version)


def test_another_task_at_a_known_position_is_refused(ledger):
    issue(ledger, 0)
    with pytest.raises(RecordError, match="Do the tasks or the seed differ"):
        ledger.issue(0, "other", epoch=0, version=0)


@pytest.mark.parametrize(("state", "step"), [(State.TRAINED, None), (State.DROPPED, None), (State.ROLLED, 3)])
def test_step_goes_with_final_states_only(ledger, state, step):
    issue(ledger, 0)
    with pytest.raises(ValueError, match="step"):
        ledger.mark([0], state, step=step)


def test_cut_back_reopens_what_was_trained_later(ledger):
    issue(ledger, 0, 1, 2)
    for position, step in ((0, 1), (1, 2), (2, 3)):
        ledger.mark([position], State.TRAINED, step=step)
    assert 1 == ledger.cut_back(2)
    assert {0: "trained", 1: "trained", 2: "issued"} == states(ledger)


def test_cut_back_reopens_later_drops(ledger):
    issue(ledger, 0, 1)
    ledger.mark([0], State.DROPPED, step=2)
    ledger.mark([1], State.DROPPED, step=3)
    ledger.cut_back(2)
    assert {0: "dropped", 1: "issued"} == states(ledger)


def test_cut_back_reopens_unfinished_prompts(ledger):
    issue(ledger, 0, 1)
    ledger.mark([0], State.ROLLED)
    ledger.mark([1], State.SCORED)
    ledger.cut_back(0)
    assert {0: "issued", 1: "issued"} == states(ledger)


def test_cut_back_removes_what_was_issued_later(ledger):
    issue(ledger, 0, 1, 2, 3)
    ledger.mark([0, 1], State.TRAINED, step=1)
    ledger.mark([2], State.TRAINED, step=2)
    ledger.cut_back(1, next_position=2)
    assert {0: "trained", 1: "trained"} == states(ledger)


def test_reopened_prompts_can_train_again(ledger):
    issue(ledger, 0)
    ledger.mark([0], State.TRAINED, step=3)
    ledger.cut_back(2)
    ledger.mark([0], State.TRAINED, step=3)
    assert {0: "trained"} == states(ledger)


def test_counts_name_every_state(ledger):
    issue(ledger, 0, 1)
    ledger.mark([0], State.TRAINED, step=1)
    assert {"issued": 1, "rolled": 0, "scored": 0, "dropped": 0, "trained": 1} == ledger.counts()


def test_flushed_rows_are_in_the_main_file(ledger, tmp_path):
    issue(ledger, 0)
    ledger.flush()
    copy = tmp_path / "copy.sqlite"
    copy.write_bytes((tmp_path / "ledger.sqlite").read_bytes())
    reader = sqlite3.connect(copy)
    assert [(1,)] == reader.execute("SELECT COUNT(*) FROM prompts").fetchall()
    reader.close()


def test_a_killed_writer_leaves_the_committed_state(tmp_path):
    path = tmp_path / "ledger.sqlite"
    done = subprocess.run([sys.executable, "-c", WRITER, str(path)], check=False)
    assert -9 == done.returncode
    ledger = Ledger(path)
    assert (10, 10) == (len(ledger.untrained()), ledger.counts()[State.TRAINED])
    ledger.close()


def test_a_file_that_is_no_ledger_is_refused(tmp_path):
    (tmp_path / "ledger.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(RecordError, match=r"ledger .* cannot be used"):
        Ledger(tmp_path / "ledger.sqlite")


def test_a_ledger_in_an_absent_folder_is_refused(tmp_path):
    with pytest.raises(RecordError, match="cannot be used"):
        Ledger(tmp_path / "absent" / "ledger.sqlite")
