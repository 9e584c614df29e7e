"""CISPO, clipped importance-sampling policy optimization: MiniMax-M1, https://arxiv.org/abs/2506.13585, eq. 4 and 5.

Assumes rollouts of one group share one prompt. Clips the weight, not the update: no token loses its gradient.

    L = 1/N sum_i sum_t - sg( clip(r_it, 1 - clip_low, 1 + clip_high) ) A_i log pi(token_t)

A_i = (r_i - mean) / (std + epsilon). The lower bound is off (clip_low 1), as in the paper. The paper names no upper
one; 4 here is a cap of 5 on the ratio, the usual choice of its followers. Bounds are relative to 1: a library's
absolute cap of 5 is clip_high = 4.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field
from torch import Tensor

from posttrain.functional.ratios import token_ratio
from posttrain.functional.surrogates import cispo
from posttrain.policy_gradient import GroupScale, LossKL, anchor, by_group, kl_term, share, weighted
from posttrain.types import Group, Loss, Needs, TokenBatch

__all__ = ["CISPO", "Config"]


class Config(GroupScale, LossKL):
    """The paper's terms."""

    clip_low: float = Field(1.0, gt=0, le=1)
    """How far below 1 the weight may fall; 1 leaves it free."""
    clip_high: float = Field(4.0, gt=0)
    """How far above 1 the weight may rise."""
    reduction: str = "token-mean"
    """Token weights: see posttrain.functional.reduce."""


class CISPO:
    """REINFORCE under a clipped weight."""

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
        """One number per rollout, from its group's rewards."""
        return by_group(groups, self.config.estimate)

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """-weight A log p + beta x KL; the shares count bounded weights, whose tokens still train."""
        low, high = self.config.clip_low, self.config.clip_high
        ratio = token_ratio(logprobs.detach(), anchor(batch, logprobs))
        policy = cispo(logprobs, ratio, batch.advantages, clip_low=low, clip_high=high)
        stats = {"weight_share/low": share(ratio < 1 - low), "weight_share/high": share(ratio > 1 + high)}
        return weighted(batch, {"policy": policy, **kl_term(self.config, batch, logprobs)}, stats)
