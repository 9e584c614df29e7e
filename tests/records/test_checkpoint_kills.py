"""Whatever moment a process dies at, the newest whole checkpoint is one that it finished."""

import os
import signal
import subprocess
import sys
import time

import pytest

from posttrain.models.complete import find_damage
from posttrain.records.checkpoints import clean_leftovers, newest_complete, write_checkpoint

WRITER = """
import sys
from pathlib import Path
from posttrain.records.checkpoints import prune, write_checkpoint

folder, first = Path(sys.argv[1]), int(sys.argv[2])

def write_step(step):
    def write(place):
        for number in range(6):
            (place / f"part-{number}").write_bytes(step.to_bytes(4, "little") * 20_000)
    return write

print("ready", flush=True)
for step in range(first, 10**6):
    write_checkpoint(folder, step, {"model": write_step(step), "learner": write_step(step)}, {"position": step})
    prune(folder, 2)
    print(step, flush=True)
"""


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "checkpoints"


def write(folder, step):
    return write_checkpoint(
        folder, step, {"model": lambda place: (place / "weights").write_bytes(b"weights")}, {"position": step}
    )


def names(folder):
    return sorted(path.name for path in folder.iterdir())


DYING = """
import os, shutil, signal, sys
from pathlib import Path
from posttrain.models import complete
from posttrain.records import checkpoints

def die(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)

def die_in_the_marker(table, stream, **options):
    stream.write('{"files": {"mod')
    stream.flush()
    die()

def die_while_removing(path, **options):
    next(file for file in Path(path).rglob("*") if file.is_file()).unlink()
    die()

def write(place):
    (place / "weights").write_bytes(b"new")
    if sys.argv[2] == "writing":
        die()

place, attribute, replacement = {
    "writing": (checkpoints, "NAME", checkpoints.NAME),
    "before syncing": (checkpoints, "sync_tree", die),
    "after renaming": (checkpoints, "sync_folder", die),
    "before sealing": (checkpoints, "seal", die),
    "inside the marker": (complete.json, "dump", die_in_the_marker),
    "while pruning": (shutil, "rmtree", die_while_removing),
}[sys.argv[2]]
setattr(place, attribute, replacement)
checkpoints.write_checkpoint(Path(sys.argv[1]), 3, {"model": write}, {"position": 3})
checkpoints.prune(Path(sys.argv[1]), 1)
"""


@pytest.mark.parametrize(
    ("moment", "survivor"),
    [
        ("writing", 2),
        ("before syncing", 2),
        ("after renaming", 2),
        ("before sealing", 2),
        ("inside the marker", 2),
        ("while pruning", 3),
    ],
)
def test_kill_at_each_moment_leaves_the_newest_whole(folder, moment, survivor):
    write(folder, 1)
    write(folder, 2)
    done = subprocess.run([sys.executable, "-c", DYING, str(folder), moment], check=False)
    assert -signal.SIGKILL == done.returncode
    clean_leftovers(folder)
    assert survivor == newest_complete(folder).checkpoint.step
    assert all(name.startswith("step-") for name in names(folder))


def kill_after(folder, first, seconds):
    """Run a process that writes checkpoints from step ``first`` and kill it; return the last step it finished."""
    command = [sys.executable, "-c", WRITER, str(folder), str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert "ready\n" == child.stdout.readline()
        time.sleep(seconds)
        os.kill(child.pid, signal.SIGKILL)
        finished = [int(line) for line in child.stdout.read().split("\n")[:-1] if line.isdigit()]
    return finished[-1] if finished else first - 1


def check_survivor(folder, step):
    """The newest whole checkpoint is the last one finished, or the one after it, and holds what was written."""
    found = newest_complete(folder).checkpoint
    assert found.step in (step, step + 1)
    assert {"position": found.step} == found.state
    for part in (*found.path.glob("model/part-*"), *found.path.glob("learner/part-*")):
        assert found.step.to_bytes(4, "little") * 20_000 == part.read_bytes()
    return found.step


def kill_in_a_loop(folder, delays):
    write(folder, 1)
    step = 1
    for delay in delays:
        step = check_survivor(folder, kill_after(folder, step + 1, delay))
        clean_leftovers(folder)
        assert all(find_damage(path) is None for path in folder.iterdir())


def test_kill_at_any_moment_leaves_the_newest_whole(folder):
    kill_in_a_loop(folder, [0.0, 0.003, 0.006, 0.01, 0.015, 0.03, 0.07, 0.11])


@pytest.mark.slow
def test_fifty_kills_leave_the_newest_whole(folder):
    kill_in_a_loop(folder, [0.001 * number + 0.0003 * (number % 7) for number in range(50)])
