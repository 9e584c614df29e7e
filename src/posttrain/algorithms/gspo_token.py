"""GSPO-token: https://arxiv.org/abs/2507.18071, eq. 13 and 14.

Assumes what GSPO does, and lets advantages differ inside a rollout (turns, process rewards, KL in the reward).

    s_it = sg(s_i) pi(token_t) / sg(pi(token_t))          the rollout's ratio in value, the token's own in gradient
    L    = 1/B sum_i 1/|o_i| sum_t -min(s_it A_it, clip(s_it, 1 - clip_low, 1 + clip_high) A_it)

With one advantage per rollout value and gradient are GSPO's. Clip 3e-4 / 4e-4 as there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field
from torch import Tensor

from posttrain.functional.ratios import straight_through_sequence_ratio
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

__all__ = ["Config", "GSPOToken"]


class Config(GroupScale, PlacedKL):
    """The paper's terms."""

    clip_low: float = Field(3e-4, gt=0, le=1)
    """How far below 1 the rollout's ratio may push."""
    clip_high: float = Field(4e-4, gt=0)
    """How far above 1 the rollout's ratio may push."""
    reduction: str = "seq-mean-token-mean"
    """Token weights: see posttrain.functional.reduce."""


class GSPOToken:
    """The rollout's ratio with the token's gradient."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.needs = Needs(
            group_size=2,
            ref_logprobs=config.kl_coefficient > 0,
            old_logprobs=config.kl_coefficient > 0 and config.kl_in_reward,
            separable=False,
            streams={"policy": config.reduction, **config.kl_streams},
        )

    def keep(self, group: Group) -> bool:
        """Every group trains."""
        return True

    def advantages(self, groups: Sequence[Group]) -> list[list[np.ndarray]]:
        """One number per rollout, from its group's rewards."""
        return by_group(groups, self.config.estimate)

    def refine(self, samples: Sequence[Sample]) -> list[Sample]:
        """Take the KL to go from each token's advantage, if the KL is in the reward."""
        config = self.config
        inside = config.kl_coefficient and config.kl_in_reward
        return less_kl_to_go(samples, config.kl_coefficient) if inside else list(samples)

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """Clipped surrogate of the straight-through ratio, + beta x KL."""
        bounds = {"clip_low": self.config.clip_low, "clip_high": self.config.clip_high}
        old = anchor(batch, logprobs)
        ratio = straight_through_sequence_ratio(logprobs, old, batch.samples, batch.sample_count)
        policy = clipped(ratio, batch.advantages, **bounds)
        parts = {"policy": policy, **kl_term(self.config, batch, logprobs)}
        return weighted(batch, parts, clip_shares(ratio, batch.advantages, **bounds))
