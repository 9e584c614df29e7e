"""Several reward models as one score, so that no single one's mistake is worth exploiting (arXiv 2310.02743).

    mean                   mean over members
    worst                  min over members
    uncertainty_weighted   mean - coefficient x variance over members
    mean_minus_deviation   mean - coefficient x standard deviation over members

Each member is first put on one scale, (score - centre) / spread by its own two numbers: a raw minimum picks the member
of the smallest scale. The members' disagreement stands in each score's detail: its growth is a sign of hacking.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field, model_validator

from posttrain.functional.reward_ensembles import Combination, combine, disagreement
from posttrain.judging import JudgeSettings, Panel
from posttrain.types import Outcome, Rollout, Score, Task

__all__ = ["Config", "Ensemble"]


class Config(JudgeSettings):
    """The members and how they are combined."""

    paths: tuple[str, ...] = Field(min_length=2)
    """Run directories, checkpoints or model folders of trained reward models."""
    combine: Combination = "worst"
    """How members become one score."""
    coefficient: float = Field(0.5, ge=0)
    """Weight of the variance or deviation over members."""
    ddof: Literal[0, 1] = 0
    """Degrees of freedom taken from variance and deviation."""
    centres: tuple[float, ...] = ()
    """Mean score of each member on one fixed set of answers; 0 for all if not given."""
    spreads: tuple[float, ...] = ()
    """Standard deviation of each member's scores on that set; 1 for all if not given."""

    @model_validator(mode="after")
    def _one_per_member(self) -> Config:
        for name in ("centres", "spreads"):
            given = getattr(self, name)
            if given and len(given) != len(self.paths):
                raise ValueError(f"{name} has {len(given)} numbers for {len(self.paths)} members")
        if any(spread <= 0 for spread in self.spreads):
            raise ValueError("every spread must be above 0: a member that scores all answers alike has no scale")
        return self


class Ensemble:
    """Scores with every member and combines."""

    def __init__(self, config: Config, name: str = "ensemble") -> None:
        self.config = config
        self.name = name
        self._panel = Panel(config.paths, config, name)

    async def score(self, rollouts: Sequence[Rollout], task: Task) -> list[Score]:
        """Return the combined score of each rollout."""
        if not rollouts:
            return []
        config = self.config
        raw = torch.tensor(await self._panel.scores(rollouts), dtype=torch.float64)
        centres = torch.tensor(config.centres or (0.0,) * len(raw), dtype=torch.float64)
        spreads = torch.tensor(config.spreads or (1.0,) * len(raw), dtype=torch.float64)
        members = (raw - centres[:, None]) / spreads[:, None]
        values = combine(members, config.combine, coefficient=config.coefficient, ddof=config.ddof)
        apart = disagreement(members)
        return [
            Score(name=self.name, value=value, outcome=Outcome.SCORED, detail=f"members differ by {far:.4f}")
            for value, far in zip(values.tolist(), apart.tolist(), strict=True)
        ]
