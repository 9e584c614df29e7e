"""Ctrl-C and SIGTERM end a run at a safe place with a checkpoint; the second Ctrl-C ends it at once."""

import signal
import time

import pytest

from tests.faults.commands import Fault, cold
from tests.faults.same_run import assert_nothing_lost, assert_same_run, newest, rows
from tests.faults.workplace import PROMPTS, STEPS

SYNC, LAUNCH = "posttrain.loops.sync", "posttrain.launch"

MOMENTS = {
    "generating": ("evaluated", Fault(target=f"{SYNC}:generate", call=4, do="interrupt"), 3),
    "learning": ("evaluated", Fault(target=f"{SYNC}:learn", call=3, do="terminate"), 3),
    "learning offline": ("offline", Fault(target="posttrain.loops.offline:learn", call=3, do="interrupt"), 3),
    "evaluating": ("evaluated", Fault(target=f"{LAUNCH}:evaluate", call=2, do="interrupt"), 3),
    "evaluating first": ("evaluated", Fault(target=f"{LAUNCH}:evaluate", call=1, do="terminate"), 0),
    "writing a checkpoint": (
        "lora",
        Fault(target="posttrain.records.checkpoints:seal", call=2, do="interrupt"),
        4,
    ),
}


def assert_asked_to_continue(done, run):
    assert 130 == done.code
    assert "Traceback" not in done.err
    assert f"continue with --resume {run}" in done.err


def interrupt_and_resume(workplace, run, moment):
    """Stop at the moment, look at what was left, resume, and compare with the run that nothing happened to."""
    variant, fault, step = MOMENTS[moment]
    stopped = workplace.train(variant, run, faults=[fault])
    assert_asked_to_continue(stopped, run)
    assert f"step-{step:06d}" == newest(run).name
    assert 0 == workplace.resume(run).code
    assert_same_run(workplace.whole(variant), run)
    assert_nothing_lost(run, steps=STEPS, per_step=PROMPTS)


@pytest.mark.parametrize("moment", ["generating", "learning"])
def test_a_signal_leaves_a_checkpoint_and_changes_nothing(workplace, tmp_path, moment):
    interrupt_and_resume(workplace, tmp_path / "run", moment)


@pytest.mark.slow
@pytest.mark.parametrize("moment", [moment for moment in MOMENTS if moment not in ("generating", "learning")])
def test_a_signal_at_any_other_moment_changes_nothing(workplace, tmp_path, moment):
    interrupt_and_resume(workplace, tmp_path / "run", moment)


def test_the_second_signal_ends_at_once_and_says_so(workplace, tmp_path):
    run = tmp_path / "run"
    done = workplace.train(
        "evaluated", run, faults=[Fault(target=f"{SYNC}:build_samples", call=4, do="interrupt_twice")]
    )
    assert 130 == done.code
    assert "Traceback" not in done.err
    assert "--resume" in done.err
    assert "step-000002" == newest(run).name
    assert 0 == workplace.resume(run).code
    assert_same_run(workplace.whole("evaluated"), run)


def test_ctrl_c_while_the_model_loads_ends_without_a_traceback(workplace, tmp_path):
    done = workplace.train("plain", tmp_path / "run", faults=[Fault(target=f"{LAUNCH}:assemble", do="interrupt")])
    assert 130 == done.code
    assert "Traceback" not in done.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_cold_process_is_stopped_from_outside(workplace, tmp_path, number):
    run = tmp_path / "run"
    words = ("train", "plain.toml", f"run.directory={run}", "run.steps=100000", "--no-check")
    with cold(*words, folder=workplace.folder) as process:
        wait_for_steps(run, 3)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert 130 == process.returncode, out
    assert "Traceback" not in err
    assert f"continue with --resume {run}" in err
    assert newest(run).name == f"step-{rows(run / 'metrics.jsonl')[-1]['step']:06d}"


def wait_for_steps(run, count):
    """Wait until so many steps are on record."""
    deadline = time.monotonic() + 120
    while len(rows(run / "metrics.jsonl")) < count and time.monotonic() < deadline:
        time.sleep(0.05)
