"""DPPO, divergence PPO: https://arxiv.org/abs/2602.04879.

Assumes rollouts of one group share one prompt. A mask by divergence takes the place of the clip by ratio: a rare token
may grow tenfold, since that moves little probability; a frequent one may not.

    keep_t = not (A > 0 and p > p_old and D > clip_high)  and  not (A < 0 and p < p_old and D > clip_low)
    L      = 1/N sum_t - sg(min(r_t, 20)) A_i log pi(token_t) over kept tokens

D is the divergence of "this token or any other": tv |p - p_old|, or kl KL(p_old, p). Dropped tokens stay in the
denominator. A_i = r_i - mean(r). The bound 0.2 is for tv, as in the paper's code and its users; kl needs a
smaller one (0.05 there).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from posttrain.functional.surrogates import dppo, dppo_keep
from posttrain.policy_gradient import GroupScale, LossKL, anchor, by_group, kl_term, share, weighted
from posttrain.types import Group, Loss, Needs, TokenBatch

__all__ = ["DPPO", "Config"]


class Config(GroupScale, LossKL):
    """The paper's terms."""

    scale: Literal["group_std", "none"] = "none"
    """What the centred reward is divided by."""
    divergence: Literal["tv", "kl"] = "tv"
    """Distance of the two-outcome distributions."""
    clip_low: float = Field(0.2, gt=0)
    """Largest divergence of a falling token whose advantage is negative."""
    clip_high: float = Field(0.2, gt=0)
    """Largest divergence of a rising token whose advantage is positive."""
    cap: float = Field(20.0, gt=1)
    """Largest ratio as a weight."""
    reduction: str = "token-mean"
    """Token weights: see posttrain.functional.reduce."""


class DPPO:
    """REINFORCE inside a trust region of probabilities."""

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
        """Weighted REINFORCE over kept tokens + beta x KL."""
        config, old, advantages = self.config, anchor(batch, logprobs), batch.advantages
        keep = dppo_keep(
            logprobs, old, advantages, divergence=config.divergence, low=config.clip_low, high=config.clip_high
        )
        policy = dppo(logprobs, old, advantages, keep, cap=config.cap)
        stats = {
            "clip_share/low": share(~keep & (advantages < 0)),
            "clip_share/high": share(~keep & (advantages > 0)),
        }
        return weighted(batch, {"policy": policy, **kl_term(config, batch, logprobs)}, stats)
