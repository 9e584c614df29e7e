"""GRPO, group relative policy optimization: DeepSeekMath, https://arxiv.org/abs/2402.03300, eq. 3 and 4.

Assumes rollouts of one group share one prompt, so that their mean reward is a fair baseline.

    A_i   = (r_i - mean(r)) / (std(r) + epsilon)
    r_it  = pi(token_t) / pi_old(token_t)
    L     = 1/G sum_i 1/|o_i| sum_t [ -min(r_it A_i, clip(r_it, 1 - clip_low, 1 + clip_high) A_i) + beta k3_it ]

Defaults are the paper's (section 4.2: beta 0.04, one update per batch; clip 0.2 is PPO's). The paper writes std
without saying which; the sample standard deviation (ddof 1) is what its released code and its descendants use. A KL
in the reward is taken from each token on, after the group's statistics, so that they do not contain it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from posttrain.functional.groups import centred, leave_one_out, leave_one_out_std
from posttrain.functional.ratios import token_ratio
from posttrain.functional.surrogates import clipped
from posttrain.policy_gradient import (
    GroupScale,
    PlacedKL,
    anchor,
    by_group,
    clip_shares,
    kl_term,
    less_kl_to_go,
    weighted,
)
from posttrain.types import Group, Loss, Needs, Sample, TokenBatch

__all__ = ["GRPO", "Config"]


class Config(GroupScale, PlacedKL):
    """Every term of the formula; the defaults are the paper."""

    centre: Literal["group_mean", "leave_one_out"] = "group_mean"
    """What is taken from each reward."""
    scale: Literal["group_std", "leave_one_out_std", "none"] = "group_std"  # type: ignore[assignment]
    """What the centred reward is divided by; leave_one_out_std is NeMo-RL's (see its preset for what it does)."""
    clip_low: float = Field(0.2, gt=0, le=1)
    """How far below 1 the ratio may push."""
    clip_high: float = Field(0.2, gt=0)
    """How far above 1 the ratio may push."""
    dual_clip: float | None = Field(None, gt=1)
    """Bound on the loss of tokens with negative advantage, in advantages; None leaves it out."""
    reduction: str = "seq-mean-token-mean"
    """Token weights: see posttrain.functional.reduce."""
    kl_coefficient: float = Field(0.04, ge=0)
    """beta; 0 needs no reference model."""
    entropy_coefficient: float = 0.0
    """Bonus on the entropy of each trained position."""
    drop_degenerate: bool = False
    """Drop groups of equal rewards from the batch, so that they do not count in the denominators either."""


class GRPO:
    """The paper's estimator, term by term."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.refine = self._less_kl if config.kl_coefficient and config.kl_in_reward else None
        bonus = {"entropy": config.reduction} if config.entropy_coefficient else {}
        self.needs = Needs(
            group_size=2,
            ref_logprobs=config.kl_coefficient > 0,
            old_logprobs=self.refine is not None,
            entropy=bool(bonus),
            streams={"policy": config.reduction, **config.kl_streams, **bonus},
        )

    def keep(self, group: Group) -> bool:
        """Keep every group, or only those whose rewards differ."""
        return not self.config.drop_degenerate or len(set(group.rewards)) > 1

    def advantages(self, groups: Sequence[Group]) -> list[list[np.ndarray]]:
        """One number per rollout, from its group's rewards."""
        return by_group(groups, self._group)

    def _group(self, rewards: Tensor) -> Tensor:
        plain, config = centred(rewards), self.config
        numerator = leave_one_out(rewards) if config.centre == "leave_one_out" else plain
        if config.scale == "none" or not bool(plain.any()):
            return numerator
        if config.scale == "leave_one_out_std":
            std = leave_one_out_std(rewards, ddof=config.ddof)
            return numerator / torch.where(std > 0, std + config.epsilon, torch.ones_like(std))
        return numerator / (rewards.std(correction=config.ddof) + config.epsilon)

    def _less_kl(self, samples: Sequence[Sample]) -> list[Sample]:
        return less_kl_to_go(samples, self.config.kl_coefficient)

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """Clipped surrogate + beta x KL - coefficient x entropy, each with its own token weights."""
        config = self.config
        bounds = {"clip_low": config.clip_low, "clip_high": config.clip_high}
        ratio = token_ratio(logprobs, anchor(batch, logprobs))
        policy = clipped(ratio, batch.advantages, dual_clip=config.dual_clip, **bounds)
        parts = {"policy": policy, **kl_term(config, batch, logprobs)}
        if config.entropy_coefficient:
            assert entropy is not None
            parts["entropy"] = -config.entropy_coefficient * entropy
        return weighted(batch, parts, clip_shares(ratio, batch.advantages, **bounds))
