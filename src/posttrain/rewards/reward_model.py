"""The score of a trained reward model: the folder that algorithm ``reward_model`` left, read on the rollout's tokens.

value = scale x (score - shift). Scores are known up to a constant per prompt, so a fixed shift only brings them near
zero; with group-relative advantages it changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from posttrain.judging import JudgeSettings, Panel
from posttrain.types import Outcome, Rollout, Score, Task

__all__ = ["Config", "RewardModelReward"]


class Config(JudgeSettings):
    """Which model, and the scale of its scores."""

    path: str
    """Run directory, checkpoint or model folder of a trained reward model."""
    shift: float = 0.0
    """Taken from every score."""
    scale: float = 1.0
    """Factor on what is left."""


class RewardModelReward:
    """Reads one score per rollout at its last sampled token."""

    def __init__(self, config: Config, name: str = "reward_model") -> None:
        self.config = config
        self.name = name
        self._panel = Panel([config.path], config, name)

    async def score(self, rollouts: Sequence[Rollout], task: Task) -> list[Score]:
        """Return the model's score of each rollout."""
        (found,) = await self._panel.scores(rollouts)
        return [self._score(score) for score in found]

    def _score(self, score: float) -> Score:
        value = self.config.scale * (score - self.config.shift)
        return Score(name=self.name, value=value, outcome=Outcome.SCORED, detail=f"raw score {score:.4f}")
