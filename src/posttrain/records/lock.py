"""One run directory, one writer: a lock file that names the process holding it.

The holder is known by process id and start time, so a lock whose process died, or whose id now belongs to another
process, is taken over. (A kernel lock alone would live on in forked workers of a killed run.)
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from posttrain.errors import RecordError
from posttrain.records.files import explained

__all__ = ["NAME", "RunLock"]

NAME = "run.lock"
"""Name of the lock file in a run directory."""


class RunLock:
    """Held by the process that writes a run directory."""

    def __init__(self, folder: Path) -> None:
        """Take the lock.

        Raises:
            RecordError: a living process holds it, or the folder cannot be written.
        """
        self.path = folder / NAME
        with explained(f"locking {folder}", folder), self._open() as stream:
            holder = _read(stream)
            if holder and _is_alive(holder):
                raise RecordError(_refusal(folder, holder))
            _write(stream, _identity(os.getpid()))

    def release(self) -> None:
        """Give the lock back; does nothing if it is not this process's any more."""
        if not self.path.exists():
            return
        with explained(f"unlocking {self.path.parent}", self.path.parent), self._open() as stream:
            if _read(stream) == _identity(os.getpid()):
                _write(stream, None)

    @contextmanager
    def _open(self) -> Iterator[IO[str]]:
        """Open the file so that two processes never read and write it at once."""
        with open(self.path, "a+", encoding="utf-8") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            stream.seek(0)
            yield stream


def _identity(process: int) -> dict[str, Any]:
    return {"process": process, "started": _start_time(process), "machine": platform.node()}


def _read(stream: IO[str]) -> dict[str, Any] | None:
    """Return the holder, or None if the file is empty or torn."""
    try:
        holder = json.loads(stream.read())
    except ValueError:
        return None
    return holder if isinstance(holder, dict) and isinstance(holder.get("process"), int) else None


def _write(stream: IO[str], holder: dict[str, Any] | None) -> None:
    stream.seek(0)
    stream.truncate()
    stream.write(json.dumps(holder) if holder else "")
    stream.flush()


def _is_alive(holder: dict[str, Any]) -> bool:
    """True unless the holder is known to be gone; on another machine that cannot be known."""
    if holder.get("machine") != platform.node():
        return True
    try:
        os.kill(holder["process"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return holder.get("started") == _start_time(holder["process"])


def _start_time(process: int) -> str | None:
    """Return when the process started in ticks since boot; "gone" for a killed one nobody has waited for.

    None where the system does not tell; then the process id alone counts.
    """
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return "gone" if fields[0] in "ZX" else fields[19]


def _refusal(folder: Path, holder: dict[str, Any]) -> str:
    if holder.get("machine") != platform.node():
        return (
            f"{folder} is being written by process {holder['process']} on machine '{holder.get('machine')}'. "
            f"If that process is gone, delete {folder / NAME}."
        )
    return (
        f"{folder} is being written by process {holder['process']}. Wait for it, stop it, or choose another run.name."
    )
