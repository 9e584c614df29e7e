"""GMPO, geometric-mean policy optimization: https://arxiv.org/abs/2507.20673, eq. 4.

Assumes rollouts of one group share one prompt and one advantage per rollout.

    d_it = log pi(token_t) - log pi_old(token_t), held at +clip where A_i > 0 and at -clip where A_i < 0
    L    = 1/B sum_i - A_i exp( 1/|o_i| sum_t d_it ),    A_i = (r_i - mean) / (std + epsilon)

The geometric mean is less moved by single outlying tokens than GRPO's arithmetic one, and the token clip is wide:
exp(-0.4) to exp(0.4), the paper's. A rollout of several segments has one mean per segment.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field
from torch import Tensor

from posttrain.functional.surrogates import geometric_mean
from posttrain.policy_gradient import GroupScale, LossKL, anchor, by_group, kl_term, share, weighted
from posttrain.types import Group, Loss, Needs, TokenBatch

__all__ = ["GMPO", "Config"]


class Config(GroupScale, LossKL):
    """The paper's terms."""

    clip: float = Field(0.4, gt=0)
    """Bound on a token's log ratio, on the side that the advantage pushes to."""
    reduction: str = "seq-mean-token-mean"
    """Token weights; every token carries its rollout's loss, so this is the mean over rollouts."""


class GMPO:
    """One geometric mean of token ratios per rollout."""

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
        """-A x geometric mean, the same for all tokens of the rollout, + beta x KL."""
        old, advantages, clip = anchor(batch, logprobs), batch.advantages, self.config.clip
        policy = geometric_mean(logprobs, old, advantages, batch.samples, batch.sample_count, clip=clip)
        moved = logprobs.detach() - old
        stats = {
            "clip_share/low": share((advantages < 0) & (moved < -clip)),
            "clip_share/high": share((advantages > 0) & (moved > clip)),
        }
        return weighted(batch, {"policy": policy, **kl_term(self.config, batch, logprobs)}, stats)
