"""A run may be killed while it resumes, and may be extended: nothing is lost then either."""

import signal

import pytest

from tests.faults.commands import Fault
from tests.faults.same_run import assert_nothing_lost, assert_same_run, rows
from tests.faults.workplace import PROMPTS, STEPS

KILL = Fault(target="posttrain.records.metrics:MetricsLog.append", call=6)
RESUMING = {
    "before the checkpoint is loaded": Fault(target="posttrain.records.journal:newest_complete"),
    "before the metrics are cut": Fault(target="posttrain.records.metrics:MetricsLog.cut_back"),
    "between metrics and ledger": Fault(target="posttrain.records.rollout_store:RolloutStore.cut_back", when="after"),
    "after the ledger is cut": Fault(target="posttrain.records.ledger:Ledger.cut_back", when="after"),
    "before the resume is noted": Fault(target="posttrain.records.run_directory:RunDirectory.note_resume"),
    "in the first step": Fault(target="posttrain.loops.sync:learn", call=1, when="after"),
}


def kill_twice(workplace, run, moment):
    assert -signal.SIGKILL == workplace.train("evaluated", run, faults=[KILL]).code
    assert -signal.SIGKILL == workplace.resume(run, faults=[RESUMING[moment]]).code
    done = workplace.resume(run)
    assert (0, "") == (done.code, done.err)
    assert_same_run(workplace.whole("evaluated"), run)
    assert_nothing_lost(run, steps=STEPS, per_step=PROMPTS)


def test_a_kill_while_resuming_changes_nothing(workplace, tmp_path):
    kill_twice(workplace, tmp_path / "run", "between metrics and ledger")


@pytest.mark.slow
@pytest.mark.parametrize("moment", [moment for moment in RESUMING if moment != "between metrics and ledger"])
def test_a_kill_at_any_moment_of_resuming_changes_nothing(workplace, tmp_path, moment):
    kill_twice(workplace, tmp_path / "run", moment)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_killed_while_its_folder_is_made_starts_again(workplace, tmp_path, when):
    run = tmp_path / "run"
    fault = Fault(target="posttrain.config:write_recipe", when=when)
    assert -signal.SIGKILL == workplace.train("plain", run, faults=[fault]).code
    lost = workplace.resume(run)
    assert 1 == lost.code
    assert "Traceback" not in lost.err
    assert 0 == workplace.train("plain", run).code
    assert_same_run(workplace.whole("plain"), run)


def test_a_run_extended_with_steps_equals_the_longer_run(workplace, tmp_path):
    run = tmp_path / "run"
    assert 0 == workplace.train("plain", run, "run.steps=3").code
    assert 0 == workplace.resume(run, "--steps", STEPS).code
    assert_same_run(workplace.whole("plain"), run)
    assert_nothing_lost(run, steps=STEPS, per_step=PROMPTS)


def test_an_extension_that_is_killed_goes_on_without_being_told_again(workplace, tmp_path):
    run = tmp_path / "run"
    assert 0 == workplace.train("plain", run, "run.steps=2").code
    fault = Fault(target="posttrain.loops.sync:learn", call=2)
    assert -signal.SIGKILL == workplace.resume(run, "--steps", STEPS, faults=[fault]).code
    assert 0 == workplace.resume(run).code
    assert_same_run(workplace.whole("plain"), run)


def test_fewer_steps_than_there_are_is_refused(workplace, tmp_path):
    run = tmp_path / "run"
    assert 0 == workplace.train("plain", run, "run.steps=3").code
    done = workplace.resume(run, "--steps", 2)
    assert 2 == done.code
    assert "3" in done.err
    assert "Traceback" not in done.err
    assert 3 == len(rows(run / "metrics.jsonl"))


def test_resuming_a_finished_run_changes_nothing(workplace, tmp_path):
    run = tmp_path / "run"
    assert 0 == workplace.train("evaluated", run).code
    done = workplace.resume(run)
    assert (0, "") == (done.code, done.err)
    assert "--steps" in done.out
    assert_same_run(workplace.whole("evaluated"), run)
