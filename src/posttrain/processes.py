"""Run a function in child processes that are killed when they hang, and never poison a later call.

Each worker is a forked child with its own socket: the function (a lambda or closure too) is inherited, arguments
travel pickled, and answers come back as JSON, so a broken child can hurt nothing but its own call. A child that
overruns its deadline, dies, or answers nonsense is killed with its whole process group and replaced.
A shared-pipe pool was measured first (pebble 5.2): ``os._exit(0)`` is seen only at the deadline, one exception
that cannot be unpickled breaks the pool for every later call, and grandchildren survive.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import pickle
import queue
import signal
import socket
import struct
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from posttrain.errors import ConfigError

MAX_REPLY_BYTES = 16 * 1024 * 1024
"""Longest answer a child may send."""
_HEADER = struct.Struct(">Q")
_PDEATHSIG = 1
_PRCTL = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None

_fork_lock = threading.Lock()
_open_sockets: set[socket.socket] = set()


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """What became of one call."""

    status: Literal["done", "raised", "timeout", "died"]
    """``done`` has a value; ``raised``: the function raised; ``timeout``, ``died``: its process was killed or ended."""
    value: Any = None
    """What the function returned, as plain JSON data (tuples become lists)."""
    detail: str = ""
    """What went wrong, in one line."""


class KillingPool:
    """Calls one function in forked children, each call with a deadline that is enforced by killing."""

    def __init__(self, function: Callable[[Any], Any], *, workers: int = 2) -> None:
        """Keep ``function(argument)``, which must return plain JSON data; children start at the first call.

        Raises ConfigError where processes cannot be forked.
        """
        if not hasattr(os, "fork"):
            raise ConfigError(
                "this system cannot fork, so code with a deadline cannot run in a process that can be killed. "
                "Set inline = true on the reward if you trust it not to hang."
            )
        self._function = function
        self._brood = _Brood()
        self._threads = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="posttrain-killing-pool")
        self._finalizer = weakref.finalize(self, _close, self._threads, self._brood)

    async def call(self, argument: Any, *, seconds: float) -> Reply:
        """Run ``function(argument)`` in a child for at most ``seconds`` and say what became of it.

        The clock starts when a child is free. Cancelling the call kills its child.
        """
        try:
            frame = pickle.dumps(argument)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            return Reply(status="raised", detail=f"the arguments cannot be sent to a process: {error}")
        holder: list[_Child] = []
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, self._ask, frame, seconds, holder)
        except asyncio.CancelledError:
            for child in holder:
                child.signal_group()
            raise

    def close(self) -> None:
        """Kill the children; the pool cannot be used afterwards."""
        self._finalizer()

    def _ask(self, frame: bytes, seconds: float, holder: list[_Child]) -> Reply:
        """Answer one call on a worker thread, with a child that is used by this thread only."""
        child = self._brood.take() or self._brood.add(_Child(self._function))
        holder.append(child)
        reply = child.ask(frame, seconds)
        holder.clear()
        self._brood.put_back(child)
        return reply


class _Brood:
    """The children of one pool: those at work and those that wait for it."""

    def __init__(self) -> None:
        self._idle: queue.SimpleQueue[_Child] = queue.SimpleQueue()
        self._alive: set[_Child] = set()
        self._closed = False

    def take(self) -> _Child | None:
        """Return a child that waits, if there is one."""
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            return None

    def add(self, child: _Child) -> _Child:
        """Know a new child."""
        self._alive.add(child)
        return child

    def put_back(self, child: _Child) -> None:
        """Let a child wait again; forget a dead one."""
        if child.alive:
            self._idle.put(child)
        else:
            self._alive.discard(child)
        if self._closed:
            self.end_idle()

    def close(self) -> None:
        """Kill all; the thread that a child works for reaps it."""
        self._closed = True
        for child in tuple(self._alive):
            child.signal_group()
        self.end_idle()

    def end_idle(self) -> None:
        """Kill and reap the children that wait."""
        while (child := self.take()) is not None:
            child.end()
            self._alive.discard(child)


def _close(threads: ThreadPoolExecutor, brood: _Brood) -> None:
    threads.shutdown(wait=False, cancel_futures=True)  # waiting could be for the very thread that runs this
    brood.close()


class _Child:
    """One forked process and the socket to it."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        with _fork_lock:
            self._socket, theirs = socket.socketpair()
            self._pid = _fork()
            if self._pid == 0:
                _be_child(theirs, self._socket, function)
            theirs.close()
            _open_sockets.add(self._socket)
        self.alive = True
        with contextlib.suppress(OSError):
            os.setpgid(self._pid, self._pid)  # both sides set it, so that it holds whoever runs first

    def ask(self, frame: bytes, seconds: float) -> Reply:
        """Send the argument, wait for the answer until the deadline; on anything else end the child."""
        deadline = time.monotonic() + seconds
        try:
            _send(self._socket, frame, deadline)
            body = _receive(self._socket, deadline)
            answer = json.loads(body)
            return Reply(status=answer["status"], value=answer.get("value"), detail=answer.get("detail", ""))
        except TimeoutError:
            self.end()
            return Reply(status="timeout", detail=f"still running after {seconds:g} s, killed")
        except (OSError, EOFError):
            return Reply(status="died", detail=f"its process {self.end()}")
        except (ValueError, KeyError, TypeError) as error:
            self.end()
            return Reply(status="died", detail=f"its process sent nonsense ({error}), killed")

    def signal_group(self) -> None:
        """Send SIGKILL to the process and to those it started."""
        for send in (os.killpg, os.kill):
            with contextlib.suppress(OSError):
                send(self._pid, signal.SIGKILL)

    def end(self) -> str:
        """Kill and reap the process, close the socket; return how it ended, in words."""
        if not self.alive:
            return "was ended"
        self.alive = False
        self.signal_group()
        with _fork_lock:
            _open_sockets.discard(self._socket)
            self._socket.close()
        try:
            _, status = os.waitpid(self._pid, 0)
        except ChildProcessError:
            return "ended"
        code = os.waitstatus_to_exitcode(status)
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _fork() -> int:
    """Fork with flushed streams, so that nothing buffered is written twice."""
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Python 3.12 warns of threads at a fork; the child below uses none of their locks.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _be_child(theirs: socket.socket, ours: socket.socket, function: Callable[[Any], Any]) -> NoReturn:
    """Serve until the parent goes away; never return into the parent's code."""
    code = 70
    try:
        _settle(theirs, ours)
        _serve(theirs, function)
        code = 0
    finally:
        os._exit(code)


def _settle(theirs: socket.socket, ours: socket.socket) -> None:
    """Cut what a fork shares with the parent: group, signals, sockets of other children, threads, input."""
    global _fork_lock
    _fork_lock = threading.Lock()
    os.setpgid(0, 0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if _PRCTL is not None:
        _PRCTL(_PDEATHSIG, signal.SIGKILL)
    for other in (*_open_sockets, ours):
        other.close()
    theirs.settimeout(None)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)  # an inherited OpenMP pool has no threads and would hang
    gc.freeze()


def _serve(channel: socket.socket, function: Callable[[Any], Any]) -> None:
    pid = os.getpid()
    while True:
        try:
            frame = _receive(channel, None)
        except (EOFError, OSError):
            return
        answer = _answer(function, frame)
        if os.getpid() != pid:  # the function forked and came back twice: only the first may answer
            return
        _send(channel, answer, None)


def _answer(function: Callable[[Any], Any], frame: bytes) -> bytes:
    """Call the function; whatever it raises, SystemExit too, becomes data."""
    try:
        body = json.dumps({"status": "done", "value": function(pickle.loads(frame))})
        sys.stdout.flush()
    except BaseException as error:
        body = json.dumps({"status": "raised", "detail": describe(error)})
    return body.encode()


def describe(error: BaseException) -> str:
    """Return type, message and place of an exception in one line of at most 400 characters."""
    text = " ".join("".join(traceback.format_exception_only(error)).split())
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""
    return text[:340] + place[:60]


def _send(channel: socket.socket, body: bytes, deadline: float | None) -> None:
    channel.settimeout(_left(deadline))
    channel.sendall(_HEADER.pack(len(body)) + body)


def _receive(channel: socket.socket, deadline: float | None) -> bytes:
    (length,) = _HEADER.unpack(_receive_exactly(channel, _HEADER.size, deadline))
    if deadline is not None and length > MAX_REPLY_BYTES:
        raise ValueError(f"an answer of {length} bytes, the limit is {MAX_REPLY_BYTES}")
    return _receive_exactly(channel, length, deadline)


def _receive_exactly(channel: socket.socket, length: int, deadline: float | None) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        channel.settimeout(_left(deadline))
        part = channel.recv(min(length - len(parts), 1 << 20))
        if not part:
            raise EOFError("the other side closed the socket")
        parts += part
    return bytes(parts)


def _left(deadline: float | None) -> float | None:
    """Seconds until the deadline; raises TimeoutError when it has passed."""
    if deadline is None:
        return None
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
