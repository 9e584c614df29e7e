"""GRPO with process supervision: DeepSeekMath, https://arxiv.org/abs/2402.03300, section 4.1.3.

Assumes step rewards on one scale for all rollouts of a group; a step ends at a sampled token.

    r~_k  = (r_k - mean) / (std + epsilon)          over all steps of all rollouts of the group
    A_it  = sum of r~_k over the steps of rollout i that end at token t or later

Step rewards come from the named reward part (its ``Score.steps``, for example a process reward model), else from the
environment's scores after each turn, whatever else the reward holds being the last turn's. A single step per rollout
is outcome supervision. A rollout with more steps sums more terms: a constant bonus per step is not neutral.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from posttrain.errors import RewardError
from posttrain.functional.process import process_supervision
from posttrain.functional.ratios import token_ratio
from posttrain.functional.surrogates import clipped
from posttrain.policy_gradient import LossKL, anchor, clip_shares, kl_term, token_turns, turn_rewards, weighted
from posttrain.types import Group, Loss, Needs, Rollout, TokenBatch

__all__ = ["Config", "GRPOProcess"]


class Config(LossKL):
    """The paper's terms."""

    kl_coefficient: float = Field(0.04, ge=0)
    """beta; 0 needs no reference model."""
    part: str | None = None
    """Reward part that scores steps; None takes what each turn earned."""
    ddof: Literal[0, 1] = 1
    """Degrees of freedom taken from the standard deviation."""
    epsilon: float = Field(1e-6, ge=0)
    """Added to the standard deviation."""
    clip_low: float = Field(0.2, gt=0, le=1)
    """How far below 1 the ratio may push."""
    clip_high: float = Field(0.2, gt=0)
    """How far above 1 the ratio may push."""
    reduction: str = "seq-mean-token-mean"
    """Token weights: see posttrain.functional.reduce."""


class GRPOProcess:
    """Each token gets what the steps from here on earned against the group's steps."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.needs = Needs(
            group_size=2,
            ref_logprobs=config.kl_coefficient > 0,
            streams={"policy": config.reduction, **config.kl_streams},
        )

    def keep(self, group: Group) -> bool:
        """Every group trains."""
        return True

    def advantages(self, groups: Sequence[Group]) -> list[list[np.ndarray]]:
        """One number per sampled token, from all steps of its group."""
        return [self._group(group) for group in groups]

    def _group(self, group: Group) -> list[np.ndarray]:
        counts = [rollout.sampled_count for rollout in group.rollouts]
        starts = np.cumsum([0, *counts])
        steps = [
            (int(s) + end, value) for s, r in zip(starts, group.rollouts, strict=False) for end, value in self._steps(r)
        ]
        flat = process_supervision(
            torch.tensor([value for _, value in steps], dtype=torch.float64),
            torch.tensor([end for end, _ in steps], dtype=torch.int64),
            torch.from_numpy(np.repeat(np.arange(len(counts)), counts)),
            len(counts),
            epsilon=self.config.epsilon,
            ddof=self.config.ddof,
        ).numpy()
        return np.split(flat, starts[1:-1])

    def _steps(self, rollout: Rollout) -> list[tuple[int, float]]:
        """(Last sampled token, reward) of each step of a rollout; none for one without tokens."""
        if self.config.part is None:
            last = {int(turn): place for place, turn in enumerate(token_turns(rollout))}
            return [(last[turn], value) for turn, value in enumerate(turn_rewards(rollout)) if turn in last]
        found = next((score for score in rollout.scores if score.name == self.config.part), None)
        outside = found is None or any(not 0 <= end < rollout.sampled_count for end, _ in found.steps)
        if found is None or outside:
            raise RewardError(
                f"grpo_process: reward part '{self.config.part}' gave rollout {rollout.index} of task "
                f"'{rollout.task.id}' no steps that end at one of its {rollout.sampled_count} sampled tokens"
            )
        return list(found.steps)

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """Clipped surrogate + beta x KL."""
        bounds = {"clip_low": self.config.clip_low, "clip_high": self.config.clip_high}
        ratio = token_ratio(logprobs, anchor(batch, logprobs))
        policy = clipped(ratio, batch.advantages, **bounds)
        parts = {"policy": policy, **kl_term(self.config, batch, logprobs)}
        return weighted(batch, parts, clip_shares(ratio, batch.advantages, **bounds))
