"""1 if the completion has the demanded shape (a regular expression), else 0.

The expression runs in a process that can be killed, on a bounded number of characters: one that explodes on a
completion is a time-out, never a hung run and never a score.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from pydantic import Field, field_validator

from posttrain.config import Settings
from posttrain.processes import KillingPool
from posttrain.types import Outcome, Rollout, Score, Task

__all__ = ["Config", "Format"]


class Config(Settings):
    """The shape and how it must match."""

    pattern: str
    """Regular expression; the dot matches line breaks too."""
    match: Literal["full", "search"] = "full"
    """full: the whole completion, space around it aside; search: some part of it."""
    max_characters: int = Field(100_000, gt=0)
    """A longer completion has the wrong shape without being searched."""
    timeout_seconds: float = Field(2.0, gt=0)
    """Deadline for one completion."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from error
        return pattern


class Format:
    """Checks the shape of the last completion; see the module."""

    def __init__(self, config: Config, name: str = "format") -> None:
        self.config = config
        self.name = name
        pattern = re.compile(config.pattern, re.DOTALL)
        check = pattern.fullmatch if config.match == "full" else pattern.search
        self._pool = KillingPool(lambda texts: [check(text) is not None for text in texts], workers=1)

    async def score(self, rollouts: Sequence[Rollout], task: Task) -> list[Score]:
        """Return 1 or 0 per rollout. If the group's completions take too long together, each is tried alone."""
        texts = [rollout.text.strip() for rollout in rollouts]
        short = [text for text in texts if len(text) <= self.config.max_characters]
        verdicts = iter(await self._check(short))
        return [next(verdicts) if len(text) <= self.config.max_characters else self._too_long(text) for text in texts]

    async def _check(self, texts: list[str]) -> list[Score]:
        reply = await self._pool.call(texts, seconds=self.config.timeout_seconds)
        if reply.status == "done":
            return [Score(name=self.name, value=float(fits), outcome=Outcome.SCORED) for fits in reply.value]
        if len(texts) > 1:
            return [(await self._check([text]))[0] for text in texts]
        outcome = Outcome.TIMEOUT if reply.status == "timeout" else Outcome.FAILED
        return [Score(name=self.name, value=None, outcome=outcome, detail=f"pattern: {reply.detail}")]

    def _too_long(self, text: str) -> Score:
        detail = f"{len(text)} characters, the limit is {self.config.max_characters}"
        return Score(name=self.name, value=0.0, outcome=Outcome.SCORED, detail=detail)
