"""KL-Cov: The Entropy Mechanism of Reinforcement Learning, https://arxiv.org/abs/2505.22617, section 4.3.

Assumes rollouts of one group share one prompt. The few tokens with the highest covariance of advantage and
log-probability, which drive entropy down, are held by a penalty; there is no clip.

    cov_t = (A_t - mean A) (log pi_old(token_t) - mean log pi_old)                    over all tokens of the batch
    L     = 1/N sum [ - r_t A_t + coefficient |log r_t| on the top share by cov ]

Paper: share 2e-4 (7B; 2e-3 for 32B), coefficient 1. Chosen once per batch, before the first step, from the old
log-probabilities (the paper's code chooses per micro-batch, so that its choice depends on the micro-batch). In the
first step |log r| is 0 and has no slope: the penalty acts from the second optimizer step of a batch on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from posttrain.functional.covariance import covariances, kl_cov, kl_cov_selection
from posttrain.policy_gradient import GroupScale, LossKL, anchor, by_group, kl_term, open_book, weighted
from posttrain.types import Group, Loss, Needs, Sample, TokenBatch

__all__ = ["Config", "KLCov"]


class Config(GroupScale, LossKL):
    """The paper's terms."""

    share: float = Field(2e-4, gt=0, le=1)
    """Share of all tokens that is held, at least one."""
    coefficient: float = Field(1.0, ge=0)
    """Factor of the penalty on held tokens."""
    reduction: str = "token-mean"
    """Token weights: see posttrain.functional.reduce."""


class KLCov:
    """A plain surrogate, and a penalty on the tokens of highest covariance."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.needs = Needs(
            group_size=2,
            ref_logprobs=config.kl_coefficient > 0,
            old_logprobs=True,
            streams={"policy": config.reduction, **config.kl_streams},
        )

    def keep(self, group: Group) -> bool:
        """Every group trains."""
        return True

    def advantages(self, groups: Sequence[Group]) -> list[list[np.ndarray]]:
        """One number per rollout, from its group's rewards."""
        return by_group(groups, self.config.estimate)

    def refine(self, samples: Sequence[Sample]) -> list[Sample]:
        """Choose the top tokens of the whole batch."""
        book = open_book(samples)
        covariance = covariances(book.read("advantages"), book.read("old_logprobs"))
        return book.written("selected", kl_cov_selection(covariance, share=self.config.share), empty=False)

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """-r A, with the penalty on chosen tokens, + beta x KL."""
        chosen = torch.zeros_like(logprobs, dtype=torch.bool) if batch.selected is None else batch.selected
        old = anchor(batch, logprobs)
        policy = kl_cov(logprobs, old, batch.advantages, chosen, coefficient=self.config.coefficient)
        return weighted(batch, {"policy": policy, **kl_term(self.config, batch, logprobs)})
