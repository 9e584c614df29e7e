"""SAPO, soft adaptive policy optimization: https://arxiv.org/abs/2511.20347.

Assumes rollouts of one group share one prompt. A gate that closes smoothly takes the place of the clip.

    L = 1/B sum_i 1/|o_i| sum_t - (4 / tau) sigmoid(tau (r_it - 1)) A_i,    A_i = (r_i - mean) / (std + epsilon)

tau is 1.0 where A > 0 and 1.05 where A <= 0 (the paper's), so that negative tokens fade sooner. At r = 1 the gradient
is that of REINFORCE; the value is not, so losses do not compare with PPO's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field
from torch import Tensor

from posttrain.functional.ratios import token_ratio
from posttrain.functional.surrogates import sapo
from posttrain.policy_gradient import GroupScale, LossKL, anchor, by_group, kl_term, weighted
from posttrain.types import Group, Loss, Needs, TokenBatch

__all__ = ["SAPO", "Config"]


class Config(GroupScale, LossKL):
    """The paper's terms."""

    temperature: float = Field(1.0, gt=0)
    """tau of tokens with a positive advantage."""
    negative_temperature: float = Field(1.05, gt=0)
    """tau of the others."""
    reduction: str = "seq-mean-token-mean"
    """Token weights: see posttrain.functional.reduce."""


class SAPO:
    """A sigmoid gate around the ratio."""

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
        """Gated surrogate + beta x KL."""
        config = self.config
        policy = sapo(
            token_ratio(logprobs, anchor(batch, logprobs)),
            batch.advantages,
            temperature=config.temperature,
            negative_temperature=config.negative_temperature,
        )
        return weighted(batch, {"policy": policy, **kl_term(config, batch, logprobs)})
