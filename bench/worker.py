"""A side of the comparison as a process of its own: it reads one JSON command per line and answers with one line.

Needs only the standard library, so that the peer's interpreter can import it too.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
QUIET = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "PYTHONWARNINGS": "ignore",
}
"""One thread, no network, no chatter: the same for both sides."""


class Side:
    """A worker seen from the driver."""

    def __init__(self, name: str, python: str, module: str, options: Mapping[str, Any], log: Path) -> None:
        """Start it; ``options`` is its first command, answered when it is ready."""
        self.name = name
        self._log = log
        self._process = subprocess.Popen(
            [python, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
            cwd=ROOT,
            env={**os.environ, **QUIET},
        )
        self.ready = self.ask(options)

    def ask(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Send a command and wait for its answer; raise with the end of the log if the worker has died."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-25:])
            raise RuntimeError(f"{self.name} ended with code {self._process.wait()}:\n{tail}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        """Let it go."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Line:
    """The worker's own end: commands in, answers out, and whatever else is printed goes to the log."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def next(self) -> dict[str, Any] | None:
        """The next command; None when there are no more."""
        line = sys.stdin.readline()
        return json.loads(line) if line.strip() else None

    def answer(self, **values: Any) -> None:
        """Reply to it."""
        self._out.write(json.dumps(values) + "\n")
        self._out.flush()


class Stations:
    """CPU seconds of this process by part of the step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._open: tuple[str, float] | None = None

    def wrap(self, owner: Any, name: str, station: str) -> None:
        """Count every call of ``owner.name`` as the station."""
        inner: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(inner)
        def timed(*arguments: Any, **options: Any) -> Any:
            start = time.process_time()
            try:
                return inner(*arguments, **options)
            finally:
                self.seconds[station] = self.seconds.get(station, 0.0) + time.process_time() - start

        setattr(owner, name, timed)

    def take(self) -> dict[str, float]:
        """What has been counted since the last time."""
        found, self.seconds = self.seconds, {}
        return found


def status(field: str) -> float:
    """A memory number of this process in MB: VmRSS, or VmHWM, the most since `forget_peak`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no {field} in /proc/self/status: memory can only be measured on Linux")


def forget_peak() -> None:
    """Let VmHWM start again from what is used now."""
    Path("/proc/self/clear_refs").write_text("5")
