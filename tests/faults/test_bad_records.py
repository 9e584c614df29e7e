"""Damaged checkpoints, changed inputs, a full disk and a second writer: said clearly, and nothing is lost."""

import os
import shutil
import subprocess

import pytest

from posttrain.records import lock
from tests.faults.commands import Fault
from tests.faults.same_run import assert_same_run, newest
from tests.faults.test_bad_recipes import assert_refused
from tests.faults.workplace import STEPS


@pytest.fixture
def run(workplace, tmp_path):
    """A copy of a finished run that may be broken."""
    return shutil.copytree(workplace.whole("plain"), tmp_path / "run")


def corrupt(model):
    """Turn one bit of the weights."""
    path = model / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def contents(run):
    """Every file of the run with its bytes, the lock and SQLite's own files excepted."""
    files = [path for path in run.rglob("*") if path.is_file() and path.name != "run.lock"]
    return {path.relative_to(run): path.read_bytes() for path in files if "ledger" not in path.name}


def test_a_corrupted_newest_checkpoint_falls_back_and_says_so(workplace, run):
    corrupt(newest(run) / "model")
    done = workplace.resume(run)
    assert (0, "") == (done.code, done.err)
    assert "step-000006 is passed over: model/model.safetensors is damaged" in done.out
    assert "resumed from step 4" in done.out
    assert_same_run(workplace.whole("plain"), run)


def test_with_every_checkpoint_corrupted_nothing_is_touched(workplace, run):
    for path in (run / "checkpoints").iterdir():
        corrupt(path / "model")
    before = contents(run)
    assert_refused(workplace.resume(run), "step-000006", "step-000004", "damaged", code=1)
    assert before == contents(run)


def test_changed_tasks_are_refused(workplace, tmp_path):
    run, tasks = tmp_path / "run", tmp_path / "tasks.jsonl"
    shutil.copy(workplace.folder / "tasks.jsonl", tasks)
    assert 0 == workplace.train("plain", run, f"tasks.path={tasks}", "run.steps=2").code
    tasks.write_text(tasks.read_text().replace("3+0=", "3+9="))
    before = contents(run)
    assert_refused(workplace.resume(run, "--steps", STEPS), "other tasks", code=1)
    assert before == contents(run)


def test_a_changed_model_is_refused(workplace, tmp_path):
    run, model = tmp_path / "run", tmp_path / "model"
    shutil.copytree(workplace.folder / "model", model)
    assert 0 == workplace.train("kl", run, f"model.path={model}", "run.steps=2").code
    corrupt(model)
    assert_refused(workplace.resume(run, "--steps", STEPS), "another model", code=1)


def test_a_folder_that_is_no_run_is_refused(workplace, tmp_path):
    assert_refused(workplace.resume(tmp_path), "not a run directory", code=1)


def test_a_damaged_config_is_refused(workplace, run):
    (run / "config.toml").write_text("[run\n")
    assert_refused(workplace.resume(run), "config.toml", code=1)


def test_a_torn_last_line_of_metrics_does_no_harm(workplace, run):
    with open(run / "metrics.jsonl", "a") as stream:
        stream.write('{"step": 7, "ver')
    assert 0 == workplace.resume(run).code
    assert_same_run(workplace.whole("plain"), run)


def test_a_run_that_is_being_written_is_refused(workplace, run):
    holder = lock.RunLock(run)
    assert_refused(workplace.resume(run), f"process {os.getpid()}", code=1)
    holder.release()


FULL = {
    "a checkpoint": Fault(target="posttrain.records.checkpoints:sync_tree", call=2, do="fill_disk"),
    "rollouts": Fault(target="posttrain.records.rollout_store:write_atomically", call=4, do="fill_disk"),
}


@pytest.mark.parametrize("what", FULL)
def test_a_full_disk_loses_nothing(workplace, tmp_path, what):
    run = tmp_path / "run"
    done = workplace.train("plain", run, faults=[FULL[what]])
    assert_refused(done, "full", "Free space", "--resume", code=1)
    assert "step-000002" == newest(run).name
    assert 0 == workplace.resume(run).code
    assert_same_run(workplace.whole("plain"), run)


def test_a_really_full_disk_loses_nothing(workplace, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("this user cannot mount a small disk")
    try:
        run = disk / "run"
        ballast = disk / "ballast"
        ballast.write_bytes(b"x" * 250_000)
        assert_refused(workplace.train("plain", run), "full", code=1)
        ballast.unlink()
        assert 0 == workplace.resume(run).code
        assert_same_run(workplace.whole("plain"), run)
    finally:
        subprocess.run(["umount", disk], check=True)
