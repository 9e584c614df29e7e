"""0 for short rollouts, then a penalty that grows linearly with the sampled tokens and stops at a cap.

value = −penalty · clamp((n − start) / (end − start), 0, 1), with n the sampled tokens of the rollout. With
penalty 1, start = L_max − L_cache and end = L_max this is DAPO's soft overlong punishment (arXiv 2503.14476, eq. 13).
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field, model_validator

from posttrain.config import Settings
from posttrain.types import Outcome, Rollout, Score, Task

__all__ = ["Config", "Length"]


class Config(Settings):
    """The range and the cap."""

    start: int = Field(ge=0)
    """Sampled tokens up to which nothing is taken off."""
    end: int = Field(gt=0)
    """Sampled tokens from which the whole penalty is taken off."""
    penalty: float = Field(1.0, gt=0, allow_inf_nan=False)
    """The most that is taken off."""

    @model_validator(mode="after")
    def _ordered(self) -> Config:
        if self.start >= self.end:
            raise ValueError(f"start must be below end; got start {self.start}, end {self.end}")
        return self


class Length:
    """Counts sampled tokens; see the module."""

    def __init__(self, config: Config, name: str = "length") -> None:
        self.config = config
        self.name = name

    async def score(self, rollouts: Sequence[Rollout], task: Task) -> list[Score]:
        """Return a value in [−penalty, 0] per rollout."""
        return [self._score(rollout.sampled_count) for rollout in rollouts]

    def _score(self, count: int) -> Score:
        share = (count - self.config.start) / (self.config.end - self.config.start)
        value = -self.config.penalty * min(max(share, 0.0), 1.0) + 0.0  # + 0.0 turns -0.0 into 0.0
        return Score(name=self.name, value=value, outcome=Outcome.SCORED, detail=f"{count} tokens")
