"""Stopping cleanly: the first Ctrl-C or SIGTERM asks the loop to end at a safe place, the second ends at once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from posttrain.errors import Interrupted

T = TypeVar("T")


class Stop:
    """Set by a signal or by the caller; a loop looks at it between stations and while it waits."""

    def __init__(self) -> None:
        self.reason: str | None = None

    def ask(self, reason: str) -> None:
        """Ask the loop to end at the next safe place."""
        self.reason = self.reason or reason

    def raise_if_asked(self) -> None:
        """Raise Interrupted if somebody asked."""
        if self.reason is not None:
            raise Interrupted(self.reason)

    async def unless_asked(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work``; if somebody asks meanwhile, cancel it and raise Interrupted."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=0.2)
                self.raise_if_asked()
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Take over SIGINT and SIGTERM for as long as the block runs (main thread only)."""
        seen = 0

        def handle(number: int, frame: FrameType | None) -> None:
            nonlocal seen
            seen += 1
            if seen > 1:
                raise KeyboardInterrupt
            self.ask(f"stopped by {signal.Signals(number).name}")

        try:
            before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:
            yield  # not the main thread: signals stay with whoever owns them
            return
        try:
            yield
        finally:
            for number, old in before.items():
                signal.signal(number, old)
