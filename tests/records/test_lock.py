"""One run has one writer, and the dead hold no lock."""

import json
import os
import platform
import subprocess
import sys

import pytest

from posttrain.errors import RecordError
from posttrain.records.lock import NAME, RunLock

HOLDER = """
import sys, time
from pathlib import Path
from posttrain.records.lock import RunLock
held = RunLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock."""
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as child:
        assert "held\n" == child.stdout.readline()
        yield child
        child.kill()


def write_holder(folder, **changes):
    holder = {"process": os.getpid(), "started": "1", "machine": platform.node()}
    (folder / NAME).write_text(json.dumps(holder | changes))


def test_lock_names_its_process(tmp_path):
    RunLock(tmp_path)
    assert os.getpid() == json.loads((tmp_path / NAME).read_text())["process"]


def test_second_writer_in_one_process_is_refused(tmp_path):
    RunLock(tmp_path)
    with pytest.raises(RecordError, match=f"being written by process {os.getpid()}"):
        RunLock(tmp_path)


def test_released_lock_can_be_taken(tmp_path):
    RunLock(tmp_path).release()
    RunLock(tmp_path)
    assert (tmp_path / NAME).read_text()


def test_releasing_twice_does_nothing(tmp_path):
    lock = RunLock(tmp_path)
    lock.release()
    lock.release()
    assert "" == (tmp_path / NAME).read_text()


def test_releasing_in_a_removed_folder_does_nothing(tmp_path):
    lock = RunLock(tmp_path)
    (tmp_path / NAME).unlink()
    lock.release()
    assert not (tmp_path / NAME).exists()


def test_releasing_leaves_anothers_lock(tmp_path):
    lock = RunLock(tmp_path)
    write_holder(tmp_path, process=1)
    before = (tmp_path / NAME).read_text()
    lock.release()
    assert before == (tmp_path / NAME).read_text()


def test_lock_of_a_living_process_stands(tmp_path, holder):
    with pytest.raises(RecordError, match=f"process {holder.pid}. Wait for it, stop it, or choose"):
        RunLock(tmp_path)


def test_lock_of_a_killed_process_is_taken_over(tmp_path, holder):
    holder.kill()
    holder.wait()
    RunLock(tmp_path)
    assert os.getpid() == json.loads((tmp_path / NAME).read_text())["process"]


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="this system has no /proc")
def test_lock_of_a_killed_process_nobody_waited_for_is_taken_over(tmp_path, holder):
    holder.kill()
    holder.stdout.read()
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
    RunLock(tmp_path)
    assert os.getpid() == json.loads((tmp_path / NAME).read_text())["process"]


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="this system has no /proc")
def test_lock_of_an_earlier_process_with_the_same_id_is_taken_over(tmp_path):
    write_holder(tmp_path, started="1")
    RunLock(tmp_path)
    assert "1" != json.loads((tmp_path / NAME).read_text())["started"]


def test_lock_of_another_machine_stands(tmp_path):
    write_holder(tmp_path, machine="elsewhere")
    with pytest.raises(RecordError, match=r"on machine 'elsewhere'. If that process is gone, delete .*run.lock"):
        RunLock(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"process": "x"}'])
def test_torn_lock_is_taken_over(tmp_path, text):
    (tmp_path / NAME).write_text(text)
    RunLock(tmp_path)
    assert os.getpid() == json.loads((tmp_path / NAME).read_text())["process"]
