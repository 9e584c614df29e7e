"""Dr. GRPO, GRPO done right: https://arxiv.org/abs/2503.20783, section 3.

Assumes rollouts of one group share one prompt. Takes GRPO's two biases out: the division by the group's standard
deviation, which favours prompts that are nearly always right or wrong, and that by the answer's own length, which
dilutes long wrong answers.

    A_i = r_i - mean(r)
    L   = 1/B sum_i 1/L_max sum_t -min(r_it A_i, clip(r_it, 1 - clip_low, 1 + clip_high) A_i)

L_max is a constant, rollouts.max_new_tokens: dividing by a batch's longest answer would bring the bias back. No KL
(paper, section 3.1, beta 0). Clip 0.2 is PPO's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field
from torch import Tensor

from posttrain.functional.groups import centred
from posttrain.functional.ratios import token_ratio
from posttrain.functional.surrogates import clipped
from posttrain.policy_gradient import LossKL, anchor, by_group, clip_shares, kl_term, weighted
from posttrain.types import Group, Loss, Needs, TokenBatch

__all__ = ["Config", "DrGRPO"]


class Config(LossKL):
    """The paper's terms; advantage and baseline have no parameter."""

    clip_low: float = Field(0.2, gt=0, le=1)
    """How far below 1 the ratio may push."""
    clip_high: float = Field(0.2, gt=0)
    """How far above 1 the ratio may push."""
    reduction: str = "seq-mean-token-sum-norm"
    """Token weights: see posttrain.functional.reduce."""


class DrGRPO:
    """Centred rewards and a constant length."""

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
        """Reward minus group mean."""
        return by_group(groups, centred)

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """Clipped surrogate + beta x KL."""
        bounds = {"clip_low": self.config.clip_low, "clip_high": self.config.clip_high}
        ratio = token_ratio(logprobs, anchor(batch, logprobs))
        policy = clipped(ratio, batch.advantages, **bounds)
        parts = {"policy": policy, **kl_term(self.config, batch, logprobs)}
        return weighted(batch, parts, clip_shares(ratio, batch.advantages, **bounds))
