"""Starts real `posttrain` processes, warm ones through the fork server and cold ones from nothing."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
    "COLUMNS": "160",
    "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """A process that has ended."""

    code: int
    """Exit code; the negative number of the signal that ended it."""
    out: str
    """What it printed."""
    err: str
    """What it printed to standard error."""
    seconds: float
    """How long it ran."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """What happens at one call of one function of the library."""

    target: str
    """``module:attribute``."""
    call: int = 1
    """Which call, from 1."""
    when: str = "before"
    """Before or after it runs."""
    do: str = "kill"
    """Name of a fault in `fork_server.FAULTS`."""

    def as_dict(self):
        """The fault as the server reads it."""
        return {name: getattr(self, name) for name in ("target", "call", "when", "do")}


class Server:
    """A warm process that forks others; one is enough for a whole test session."""

    def __init__(self, folder):
        self._folder = folder
        self._count = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.fork_server"],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert json.loads(self._process.stdout.readline())["ready"]

    def run(self, *words, folder, faults=(), kill_after=None, limit=120.0):
        """Run ``posttrain WORDS`` in a folder, with faults planted, perhaps killed after so many seconds."""
        self._count += 1
        out, err = (self._folder / f"{self._count}.{kind}" for kind in ("out", "err"))
        request = {
            "words": [str(word) for word in words],
            "folder": str(folder),
            "out": str(out),
            "err": str(err),
            "faults": [fault.as_dict() for fault in faults],
            "kill_after": kill_after,
            "limit": limit,
        }
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return Done(code=answer["code"], seconds=answer["seconds"], out=out.read_text(), err=err.read_text())

    def close(self):
        """End the server."""
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(timeout=10)


def environment():
    """This process's environment, quiet and offline."""
    return {**os.environ, **ENVIRONMENT}


def cold(*words, folder):
    """Start ``python -m posttrain.cli.main WORDS`` and return the running process."""
    return subprocess.Popen(
        [sys.executable, "-m", "posttrain.cli.main", *map(str, words)],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
