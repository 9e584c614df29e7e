"""GSPO, group sequence policy optimization: https://arxiv.org/abs/2507.18071, eq. 5 to 7.

Assumes rollouts of one group share one prompt and one reward per rollout: the ratio is the rollout's, like the reward.

    s_i = exp( 1/|o_i| sum_t (log pi - log pi_old)(token_t) )
    L   = 1/B sum_i -min(s_i A_i, clip(s_i, 1 - clip_low, 1 + clip_high) A_i),    A_i = (r_i - mean) / (std + epsilon)

Clip 3e-4 / 4e-4 (section 5.1): small because s is a geometric mean. It clips whole rollouts, so clip shares far above
PPO's are normal. |o_i| counts sampled tokens; a rollout of several segments has one ratio per segment.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field
from torch import Tensor

from posttrain.functional.ratios import sequence_ratio
from posttrain.functional.surrogates import clipped
from posttrain.policy_gradient import GroupScale, LossKL, anchor, by_group, clip_shares, kl_term, weighted
from posttrain.types import Group, Loss, Needs, TokenBatch

__all__ = ["GSPO", "Config"]


class Config(GroupScale, LossKL):
    """The paper's terms."""

    clip_low: float = Field(3e-4, gt=0, le=1)
    """How far below 1 the rollout's ratio may push."""
    clip_high: float = Field(4e-4, gt=0)
    """How far above 1 the rollout's ratio may push."""
    reduction: str = "seq-mean-token-mean"
    """Token weights; anything else weighs long rollouts more, which the paper's formula does not."""


class GSPO:
    """One ratio per rollout."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.needs = Needs(
            group_size=2,
            ref_logprobs=config.kl_coefficient > 0,
            separable=False,
            streams={"policy": config.reduction, **config.kl_streams},
        )

    def keep(self, group: Group) -> bool:
        """Every group trains."""
        return True

    def advantages(self, groups: Sequence[Group]) -> list[list[np.ndarray]]:
        """One number per rollout, from its group's rewards."""
        return by_group(groups, self.config.estimate)

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """Clipped surrogate of the rollout's ratio, the same for all its tokens, + beta x KL."""
        bounds = {"clip_low": self.config.clip_low, "clip_high": self.config.clip_high}
        ratio = sequence_ratio(logprobs, anchor(batch, logprobs), batch.samples, batch.sample_count)[batch.samples]
        policy = clipped(ratio, batch.advantages, **bounds)
        parts = {"policy": policy, **kl_term(self.config, batch, logprobs)}
        return weighted(batch, parts, clip_shares(ratio, batch.advantages, **bounds))
