"""REINFORCE: Williams 1992, https://doi.org/10.1007/BF00992696.

Assumes that the batch was sampled by the policy that trains: there is no ratio, so one optimizer step per batch.

    L = - 1/B sum_i sum_t A_i log pi(token_t),    A_i = r_i - b

b is 0 as in the paper's plainest form (so equal rewards do move the policy), or the mean reward of the batch. A KL in
the reward is taken from each token on: A_it = A_i - beta sum_{s >= t} k1_s. The loss's value means nothing; its
gradient is the policy gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from torch import Tensor

from posttrain.functional.groups import centred
from posttrain.functional.surrogates import reinforce
from posttrain.policy_gradient import PlacedKL, kl_term, less_kl_to_go, over_batch, weighted
from posttrain.types import Group, Loss, Needs, Sample, TokenBatch

__all__ = ["Config", "Reinforce"]


class Config(PlacedKL):
    """The baseline, the reduction and the place of the KL."""

    baseline: Literal["none", "batch_mean"] = "none"
    """What is taken from each reward."""
    reduction: str = "seq-mean-token-sum"
    """Token weights: the sum over a rollout's tokens is its log-probability, as in the paper."""


class Reinforce:
    """Reward times log-probability."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.needs = Needs(
            ref_logprobs=config.kl_coefficient > 0,
            old_logprobs=config.kl_coefficient > 0 and config.kl_in_reward,
            streams={"policy": config.reduction, **config.kl_streams},
        )

    def keep(self, group: Group) -> bool:
        """Every group trains."""
        return True

    def advantages(self, groups: Sequence[Group]) -> list[list[np.ndarray]]:
        """The reward, or its distance from the batch's mean."""
        return over_batch(groups, centred if self.config.baseline == "batch_mean" else lambda rewards: rewards)

    def refine(self, samples: Sequence[Sample]) -> list[Sample]:
        """Take the KL to go from each token's advantage, if the KL is in the reward."""
        config = self.config
        inside = config.kl_coefficient and config.kl_in_reward
        return less_kl_to_go(samples, config.kl_coefficient) if inside else list(samples)

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """-A log p, and beta x KL if the KL is in the loss."""
        policy = reinforce(logprobs, batch.advantages)
        return weighted(batch, {"policy": policy, **kl_term(self.config, batch, logprobs)})
