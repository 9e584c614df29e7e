"""ReMax: https://arxiv.org/abs/2310.10505, algorithm 1.

Assumes that the batch was sampled by the policy that trains, and costs one more rollout per prompt: the greedy one,
with the same weights, scored and not trained.

    r_t = 1[t last] R - beta (log pi_old - log pi_ref)(token_t)
    A_t = sum_{s >= t} r_s - r(greedy rollout)
    L   = - 1/B sum_i sum_t A_t log pi(token_t)

The greedy reward is a baseline that does not depend on the sampled rollout, so the gradient stays unbiased with one
rollout per prompt. beta 0 here, because the paper's penalty belongs to a learned reward model; 0.1 is its code's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from torch import Tensor

from posttrain.errors import RewardError
from posttrain.functional.surrogates import reinforce
from posttrain.policy_gradient import Estimator, PlacedKL, kl_term, less_kl_to_go, weighted
from posttrain.types import Group, Loss, Needs, Sample, TokenBatch

__all__ = ["Config", "ReMax"]


class Config(PlacedKL):
    """The penalty and the reduction; the baseline has no parameter."""

    kl_place: Literal["reward", "loss"] = "reward"
    """In the reward (k1, with return-to-go) or in the loss (k2, k3_k2, rho_k3 or k3)."""
    kl_estimator: Estimator = "k1"
    """Estimator of the KL to the reference."""
    reduction: str = "seq-mean-token-sum"
    """Token weights: the sum over a rollout's tokens is its log-probability, as in the paper."""


class ReMax:
    """Each rollout against what temperature 0 earns."""

    def __init__(self, config: Config) -> None:
        self.config = config
        penalised = config.kl_coefficient > 0
        self.needs = Needs(
            greedy=True,
            ref_logprobs=penalised,
            old_logprobs=penalised and config.kl_in_reward,
            streams={"policy": config.reduction, **config.kl_streams},
        )

    def keep(self, group: Group) -> bool:
        """Every group trains."""
        return True

    def advantages(self, groups: Sequence[Group]) -> list[list[np.ndarray]]:
        """Reward minus the greedy rollout's; RewardError where a group has none."""
        return [[np.asarray(reward - self._baseline(group)) for reward in group.rewards] for group in groups]

    def _baseline(self, group: Group) -> float:
        if group.greedy is None or group.greedy.reward is None:
            raise RewardError(
                f"remax compares with the greedy rollout, and group {group.position} (task '{group.task.id}') has none "
                "with a reward: roll groups out with greedy=True"
            )
        return float(group.greedy.reward)

    def refine(self, samples: Sequence[Sample]) -> list[Sample]:
        """Take the KL to go from each token's advantage, if the KL is in the reward."""
        config = self.config
        inside = config.kl_coefficient and config.kl_in_reward
        return less_kl_to_go(samples, config.kl_coefficient) if inside else list(samples)

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """-A log p, and beta x KL if the KL is in the loss."""
        policy = reinforce(logprobs, batch.advantages)
        return weighted(batch, {"policy": policy, **kl_term(self.config, batch, logprobs)})
