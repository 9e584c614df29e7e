"""Gives the same replies whatever the policy says: for tests of loops and for trying out multi-turn recipes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from posttrain.config import Settings
from posttrain.protocols import EnvStep
from posttrain.types import Message, Task

__all__ = ["Config", "Scripted"]


class Config(Settings):
    """The script."""

    replies: tuple[str, ...] = ()
    """Text of the reply after each completion; the completion after the last one ends the task."""
    role: Literal["user", "tool"] = "user"
    """Role of the replies."""
    scores: dict[str, float] = Field(default_factory=dict)
    """Scores by name, given with the end."""
    truncate: bool = False
    """End by a limit instead of a result."""


class Scripted:
    """Replays its script; see the module."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._given = 0

    async def reset(self, task: Task) -> tuple[Message, ...]:
        """Return the task's messages."""
        return task.messages

    async def step(self, message: Message) -> EnvStep:
        """Return the next reply, or the end with the scores."""
        if self._given == len(self.config.replies):
            truncated = self.config.truncate
            return EnvStep(terminated=not truncated, truncated=truncated, scores=self.config.scores or None)
        reply = {"role": self.config.role, "content": self.config.replies[self._given]}
        self._given += 1
        return EnvStep(reply=(reply,))

    async def close(self) -> None:
        """Hold nothing, free nothing."""
