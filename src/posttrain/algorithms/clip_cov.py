"""Clip-Cov: The Entropy Mechanism of Reinforcement Learning, https://arxiv.org/abs/2505.22617, section 4.2.

Assumes rollouts of one group share one prompt. Entropy falls with the covariance of advantage and log-probability, and
few tokens carry it: a random few of those are taken out of the gradient.

    cov_t = (A_t - mean A) (log pi_old(token_t) - mean log pi_old)                    over all tokens of the batch
    L     = 1/N sum PPO clip, with 0 for a random share of the tokens whose cov lies between low and high

Paper: share 2e-4, low 1, high 5, clip 0.2. Chosen once per batch, before the first step, from the old log-probabilities
(the paper's code chooses per micro-batch, so that its choice depends on the micro-batch); left-out tokens still count.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from posttrain.functional.covariance import clip_cov, clip_cov_selection, covariances
from posttrain.functional.ratios import token_ratio
from posttrain.functional.surrogates import clipped
from posttrain.policy_gradient import GroupScale, LossKL, anchor, by_group, clip_shares, kl_term, open_book, weighted
from posttrain.types import Group, Loss, Needs, Sample, TokenBatch

__all__ = ["ClipCov", "Config"]


class Config(GroupScale, LossKL):
    """The paper's terms."""

    share: float = Field(2e-4, gt=0, le=1)
    """Share of all tokens that is left out, at least one."""
    low: float = 1.0
    """Covariance above which a token may be chosen."""
    high: float = 5.0
    """Covariance below which a token may be chosen."""
    clip_low: float = Field(0.2, gt=0, le=1)
    """How far below 1 the ratio may push."""
    clip_high: float = Field(0.2, gt=0)
    """How far above 1 the ratio may push."""
    reduction: str = "token-mean"
    """Token weights: see posttrain.functional.reduce."""


class ClipCov:
    """PPO's clip, less a few tokens of high covariance."""

    def __init__(self, config: Config, seed: int = 0) -> None:
        self.config, self.seed = config, seed
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
        """Choose among the tokens of the whole batch; the draw depends on the seed and on which groups these are."""
        book, config = open_book(samples), self.config
        covariance = covariances(book.read("advantages"), book.read("old_logprobs"))
        words = np.random.SeedSequence([self.seed, *sorted(set(book.groups.tolist()))]).generate_state(2)
        generator = torch.Generator().manual_seed(int(words[0]) << 31 | int(words[1]) >> 1)
        chosen = clip_cov_selection(
            covariance, generator=generator, share=config.share, low=config.low, high=config.high
        )
        return book.written("selected", chosen, empty=False)

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """Clipped surrogate with 0 for the chosen tokens, + beta x KL."""
        bounds = {"clip_low": self.config.clip_low, "clip_high": self.config.clip_high}
        ratio = token_ratio(logprobs, anchor(batch, logprobs))
        policy = clipped(ratio, batch.advantages, **bounds)
        if batch.selected is not None:
            policy = clip_cov(policy, batch.selected)
        parts = {"policy": policy, **kl_term(self.config, batch, logprobs)}
        return weighted(batch, parts, clip_shares(ratio, batch.advantages, **bounds))
