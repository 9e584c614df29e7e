"""RLOO, REINFORCE leave-one-out: https://arxiv.org/abs/2402.14740, section 2.3; Kool et al. 2019.

Assumes rollouts of one group share one prompt and that the batch was sampled by the policy that trains: the paper
drops ratio and clip, so one optimizer step per batch. The rollout is the action.

    R_i = r_i - beta sum_t (log pi_old - log pi_ref)(token_t)
    A_i = R_i - mean_{j != i} R_j
    L   = - 1/B sum_i A_i sum_t log pi(token_t)

beta 0.03 is the paper's for TL;DR summaries (0.1 for dialogue). With verifiable rewards use 0. A KL inside the
reward passes through the baseline; a single rollout has nothing to be compared with and moves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from posttrain.functional.groups import leave_one_out
from posttrain.functional.masked import row_sum
from posttrain.functional.surrogates import reinforce
from posttrain.policy_gradient import Estimator, PlacedKL, by_group, kl_term, open_book, weighted
from posttrain.types import Group, Loss, Needs, Sample, TokenBatch

__all__ = ["RLOO", "Config"]


class Config(PlacedKL):
    """The penalty and the reduction; the baseline has no parameter."""

    kl_coefficient: float = Field(0.03, ge=0)
    """beta; 0 needs no reference model."""
    kl_place: Literal["reward", "loss"] = "reward"
    """In the reward (k1 of the whole rollout, before the baseline) or in the loss (k2, k3_k2, rho_k3 or k3)."""
    kl_estimator: Estimator = "k1"
    """Estimator of the KL to the reference."""
    reduction: str = "seq-mean-token-sum"
    """Token weights: the sum over a rollout's tokens is its log-probability, as in the paper."""


class RLOO:
    """Each rollout against the mean of the others."""

    def __init__(self, config: Config) -> None:
        self.config = config
        penalised = config.kl_coefficient > 0
        self.needs = Needs(
            group_size=2,
            ref_logprobs=penalised,
            old_logprobs=penalised and config.kl_in_reward,
            streams={"policy": config.reduction, **config.kl_streams},
        )

    def keep(self, group: Group) -> bool:
        """Every group trains."""
        return True

    def advantages(self, groups: Sequence[Group]) -> list[list[np.ndarray]]:
        """Reward minus the mean of the other rewards."""
        return by_group(groups, leave_one_out)

    def refine(self, samples: Sequence[Sample]) -> list[Sample]:
        """Leave-one-out of reward minus KL, if the KL is in the reward."""
        if not (self.config.kl_coefficient and self.config.kl_in_reward):
            return list(samples)
        book = open_book(samples)
        kl = row_sum(book.read("old_logprobs") - book.read("ref_logprobs"), book.rows, book.count)
        penalised, found = book.rewards - self.config.kl_coefficient * kl, torch.zeros_like(book.rewards)
        for group in torch.unique(book.groups):
            members = book.groups == group
            found[members] = leave_one_out(penalised[members])
        return book.written("advantages", found[book.rows])

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """-A log p, and beta x KL if the KL is in the loss."""
        policy = reinforce(logprobs, batch.advantages)
        return weighted(batch, {"policy": policy, **kl_term(self.config, batch, logprobs)})
