"""MaxRL, maximum-likelihood reinforcement learning: https://arxiv.org/abs/2602.02710.

Assumes rollouts of one group share one prompt, and rewards of at least 0, best 0 or 1.

    A_i = (r_i - mean(r)) / (mean(r) + epsilon)
    L   = 1/N sum_i sum_t -min(r_it A_i, clip(r_it, 1 - clip_low, 1 + clip_high) A_i)

With rewards 0 and 1 the expected gradient is that of log(pass rate) instead of the pass rate, up to the order that the
group size allows: a hard prompt weighs more the rarer it is solved. Clip 0.2 is PPO's; token-mean as in its code.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field
from torch import Tensor

from posttrain.errors import RewardError
from posttrain.functional.groups import mean_scaled
from posttrain.functional.ratios import token_ratio
from posttrain.functional.surrogates import clipped
from posttrain.policy_gradient import LossKL, anchor, by_group, clip_shares, kl_term, weighted
from posttrain.types import Group, Loss, Needs, TokenBatch

__all__ = ["Config", "MaxRL"]


class Config(LossKL):
    """The paper's terms."""

    epsilon: float = Field(1e-6, ge=0)
    """Added to the mean."""
    clip_low: float = Field(0.2, gt=0, le=1)
    """How far below 1 the ratio may push."""
    clip_high: float = Field(0.2, gt=0)
    """How far above 1 the ratio may push."""
    reduction: str = "token-mean"
    """Token weights: see posttrain.functional.reduce."""


class MaxRL:
    """Centred rewards over their mean."""

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
        """One number per rollout; RewardError for a negative reward, whose sign the division would turn around."""
        for group in groups:
            if min(group.rewards, default=0.0) < 0:
                raise RewardError(
                    f"maxrl divides by the group's mean reward, and task '{group.task.id}' earned "
                    f"{min(group.rewards):g}: use rewards of at least 0, best 0 and 1"
                )
        return by_group(groups, lambda rewards: mean_scaled(rewards, epsilon=self.config.epsilon))

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """Clipped surrogate + beta x KL."""
        bounds = {"clip_low": self.config.clip_low, "clip_high": self.config.clip_high}
        ratio = token_ratio(logprobs, anchor(batch, logprobs))
        policy = clipped(ratio, batch.advantages, **bounds)
        parts = {"policy": policy, **kl_term(self.config, batch, logprobs)}
        return weighted(batch, parts, clip_shares(ratio, batch.advantages, **bounds))
