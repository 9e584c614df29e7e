"""OPO, on-policy RL with optimal reward baseline: https://arxiv.org/abs/2505.23585, section 3.

Assumes rollouts of one group share one prompt, that the batch was sampled by the policy that trains (one optimizer
step per batch: no ratio, no clip), and that a rollout's squared gradient grows with its length.

    b   = sum_i |o_i| r_i / sum_i |o_i|
    L   = - 1/B sum_i (r_i - b) sum_t log pi(token_t)

b minimises the variance under the last assumption. No KL and no entropy bonus, as in the paper. |o_i| counts sampled
tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from posttrain.functional.groups import length_weighted
from posttrain.functional.surrogates import reinforce
from posttrain.policy_gradient import LossKL, kl_term, weighted
from posttrain.types import Group, Loss, Needs, TokenBatch

__all__ = ["OPO", "Config"]


class Config(LossKL):
    """The reduction; the baseline has no parameter."""

    reduction: str = "seq-mean-token-sum"
    """Token weights: the sum over a rollout's tokens is its log-probability, as in the paper."""


class OPO:
    """Each rollout against the length-weighted mean of its group."""

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
        """Reward minus the group's length-weighted mean."""
        return [[np.asarray(a) for a in self._group(group).tolist()] for group in groups]

    def _group(self, group: Group) -> Tensor:
        lengths = torch.tensor([rollout.sampled_count for rollout in group.rollouts])
        return length_weighted(torch.tensor(group.rewards, dtype=torch.float64), lengths)

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """-A log p + beta x KL."""
        policy = reinforce(logprobs, batch.advantages)
        return weighted(batch, {"policy": policy, **kl_term(self.config, batch, logprobs)})
