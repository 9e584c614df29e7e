"""1 if the stated answer equals the reference answer as text, else 0.

Both sides are normalised the same way first. A pattern of the user runs in a process that can be killed, so a
regular expression that explodes is a time-out and not a hung run.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Sequence
from typing import Any

from pydantic import Field, field_validator

from posttrain.config import Settings
from posttrain.processes import KillingPool
from posttrain.reading import Place, read_place
from posttrain.types import Outcome, Rollout, Score, Task

__all__ = ["Config", "Exact"]


class Config(Settings):
    """How the answer is found and compared."""

    place: Place = "whole"
    """Where the answer stands: whole, tag, boxed or hashes."""
    tag: str = Field("answer", min_length=1)
    """Name of the tag when place is tag."""
    pattern: str | None = None
    """Regular expression searched at that place; its last match counts, the first group if it has one."""
    strip: bool = True
    """Ignore space around the answer."""
    ignore_case: bool = False
    """Compare without regard to case."""
    collapse_whitespace: bool = False
    """Compare with every run of white space as one blank."""
    timeout_seconds: float = Field(2.0, gt=0)
    """Deadline of the pattern on one completion."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from error
        return pattern


class Exact:
    """Compares text; see the module."""

    def __init__(self, config: Config, name: str = "exact") -> None:
        self.config = config
        self.name = name
        self._pool = None if config.pattern is None else KillingPool(_Finder(config.pattern), workers=1)

    async def score(self, rollouts: Sequence[Rollout], task: Task) -> list[Score]:
        """Return 1 or 0 per rollout; unparsable where no answer stands, failed where the task has none."""
        if task.answer is None:
            return [self._score(Outcome.FAILED, f"task {task.id!r} has no answer to compare with") for _ in rollouts]
        wanted = self._normalise(task.answer)
        stated = [read_place(r.text, self.config.place, self.config.tag) for r in rollouts]
        if self._pool is None:
            return [self._compare(answer, wanted) for answer in stated]
        return await self._search(self._pool, stated, wanted)

    async def _search(self, pool: KillingPool, stated: list[str | None], wanted: str) -> list[Score]:
        """Search all texts in one call; if that fails, each alone, so that one text spoils only its own score."""
        reply = await pool.call(stated, seconds=self.config.timeout_seconds)
        if reply.status == "done":
            return [self._compare(answer, wanted) for answer in reply.value]
        if len(stated) > 1:
            return [(await self._search(pool, [text], wanted))[0] for text in stated]
        outcome = Outcome.TIMEOUT if reply.status == "timeout" else Outcome.FAILED
        return [self._score(outcome, f"pattern {self.config.pattern!r}: {reply.detail}")]

    def _compare(self, answer: str | None, wanted: str) -> Score:
        if answer is None:
            return self._score(Outcome.UNPARSABLE, self._missing())
        read = self._normalise(answer)
        return Score(name=self.name, value=float(read == wanted), outcome=Outcome.SCORED, detail=read[:80])

    def _missing(self) -> str:
        place = f"<{self.config.tag}> tag" if self.config.place == "tag" else self.config.place
        return f"no answer in the completion (place: {place}, pattern: {self.config.pattern})"

    def _score(self, outcome: Outcome, detail: str) -> Score:
        return Score(name=self.name, value=None, outcome=outcome, detail=detail)

    def _normalise(self, text: str) -> str:
        if self.config.collapse_whitespace:
            text = re.sub(r"\s+", " ", text)
        if self.config.strip:
            text = text.strip()
        return text.casefold() if self.config.ignore_case else text


class _Finder:
    """Finds the last match in each text; runs in the child."""

    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(pattern)

    def __call__(self, texts: list[str | None]) -> list[Any]:
        return [None if text is None else self._last(text) for text in texts]

    def _last(self, text: str) -> str | None:
        matches = collections.deque(self._pattern.finditer(text), maxlen=1)
        if not matches:
            return None
        last = matches[0]
        return last.group(1) if self._pattern.groups else last.group()
