"""One question, one answer: the opening messages are the task's, and the first completion ends it."""

from __future__ import annotations

from posttrain.config import Settings
from posttrain.protocols import EnvStep
from posttrain.types import Message, Task

__all__ = ["Config", "SingleTurn"]


class Config(Settings):
    """Nothing to set."""


class SingleTurn:
    """Ends after the first completion; rewards do the scoring."""

    def __init__(self, config: Config) -> None:
        self.config = config

    async def reset(self, task: Task) -> tuple[Message, ...]:
        """Return the task's messages."""
        return task.messages

    async def step(self, message: Message) -> EnvStep:
        """End the task."""
        return EnvStep(terminated=True)

    async def close(self) -> None:
        """Hold nothing, free nothing."""
