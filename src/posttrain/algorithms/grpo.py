"""GRPO, group relative policy optimization: DeepSeekMath, https://arxiv.org/abs/2402.03300, eq. 3 and 4.

Assumes rollouts of one group share one prompt, so that their mean reward is a fair baseline.

    A_i   = (r_i - mean(r)) / (std(r) + epsilon)
    r_it  = pi(token_t) / pi_old(token_t)
    L     = 1/G sum_i 1/|o_i| sum_t [ -min(r_it A_i, clip(r_it, 1 - clip_low, 1 + clip_high) A_i) + beta k3_it ]

Defaults are the paper's (section 4.2: beta 0.04, one update per batch; clip 0.2 is PPO's). The paper writes std
without saying which; the sample standard deviation (ddof 1) is what its released code and its descendants use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from posttrain.config import Settings
from posttrain.functional.groups import centred, degenerate, leave_one_out
from posttrain.functional.kl import ESTIMATORS, Estimator
from posttrain.functional.ratios import token_ratio
from posttrain.functional.surrogates import clip_sides, clipped
from posttrain.types import Group, Loss, Needs, Stat, TokenBatch

__all__ = ["GRPO", "Config"]


class Config(Settings):
    """Every term of the formula; the defaults are the paper."""

    centre: Literal["group_mean", "leave_one_out"] = "group_mean"
    """What is taken from each reward."""
    scale: Literal["group_std", "none"] = "group_std"
    """What the centred reward is divided by."""
    ddof: Literal[0, 1] = 1
    """Degrees of freedom taken from the standard deviation."""
    epsilon: float = Field(1e-6, ge=0)
    """Added to the standard deviation."""
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
    kl_estimator: Estimator = "k3"
    """Estimator of the KL to the reference, inside the loss."""
    entropy_coefficient: float = 0.0
    """Bonus on the entropy of each trained position."""
    drop_degenerate: bool = False
    """Drop groups of equal rewards from the batch, so that they do not count in the denominators either."""


class GRPO:
    """The paper's estimator, term by term."""

    def __init__(self, config: Config) -> None:
        self.config = config
        streams = {"policy": config.reduction}
        if config.kl_coefficient:
            streams["kl"] = config.reduction
        if config.entropy_coefficient:
            streams["entropy"] = config.reduction
        self.needs = Needs(
            group_size=2,
            ref_logprobs=bool(config.kl_coefficient),
            entropy=bool(config.entropy_coefficient),
            streams=streams,
        )

    def keep(self, group: Group) -> bool:
        """Keep every group, or only those whose rewards differ."""
        return not self.config.drop_degenerate or len(set(group.rewards)) > 1

    def advantages(self, groups: Sequence[Group]) -> list[list[np.ndarray]]:
        """One number per rollout, from its group's rewards."""
        return [[np.asarray(a) for a in self._group(group)] for group in groups]

    def _group(self, group: Group) -> list[float]:
        rewards = torch.tensor(group.rewards, dtype=torch.float64)
        baseline = {"group_mean": centred, "leave_one_out": leave_one_out}[self.config.centre]
        numerator = baseline(rewards)
        if self.config.scale == "none" or degenerate(rewards):
            return numerator.tolist()
        return (numerator / (rewards.std(correction=self.config.ddof) + self.config.epsilon)).tolist()

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """Clipped surrogate + beta x KL - coefficient x entropy, each with its own token weights."""
        config = self.config
        old = logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs
        ratio = token_ratio(logprobs, old)
        bounds = {"clip_low": config.clip_low, "clip_high": config.clip_high}
        policy = clipped(ratio, batch.advantages, dual_clip=config.dual_clip, **bounds)
        parts = {"policy": (batch.token_weight["policy"] * policy).sum()}
        if config.kl_coefficient:
            assert batch.ref_logprobs is not None
            kl = ESTIMATORS[config.kl_estimator](logprobs, batch.ref_logprobs)
            parts["kl"] = config.kl_coefficient * (batch.token_weight["kl"] * kl).sum()
        if config.entropy_coefficient:
            assert entropy is not None
            parts["entropy"] = -config.entropy_coefficient * (batch.token_weight["entropy"] * entropy).sum()
        total = torch.stack(list(parts.values())).sum()
        low, high = clip_sides(ratio.detach(), batch.advantages, **bounds)
        stats = {f"loss/{name}": Stat(kind="sum", value=float(part.detach())) for name, part in parts.items()}
        stats["loss"] = Stat(kind="sum", value=float(total.detach()))
        stats["clip_share/low"] = Stat(kind="mean", value=float(low.sum()), count=len(low))
        stats["clip_share/high"] = Stat(kind="mean", value=float(high.sum()), count=len(high))
        return Loss(total=total, stats=stats)
