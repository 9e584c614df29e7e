"""REINFORCE++: https://arxiv.org/abs/2501.03262.

Assumes nothing about groups: the baseline is the mean over the whole batch, so one rollout per prompt is enough.

    r_t = 1[t last] R - beta (log pi_old - log pi_ref)(token_t)                       k1, detached
    G_t = r_t + gamma G_{t+1}                                                         over sampled tokens only
    A_t = (G_t - mean(G)) / sqrt(var(G) + 1e-8)                                       over all tokens of the batch
    L   = 1/N sum -min(r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t)

Defaults: k1 in the reward and gamma 1 are the paper's, beta 0.01 and clip 0.2 those of its code (OpenRLHF); the
variance is unbiased (ddof 1). The return runs through tool calls without decay: what the policy did not write is no
step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from posttrain.functional.ratios import token_ratio
from posttrain.functional.returns import returns_to_go, token_rewards, with_kl
from posttrain.functional.surrogates import clipped
from posttrain.functional.whiten import whiten
from posttrain.policy_gradient import (
    Estimator,
    PlacedKL,
    anchor,
    clip_shares,
    kl_term,
    open_book,
    over_batch,
    weighted,
)
from posttrain.types import Group, Loss, Needs, Sample, TokenBatch

__all__ = ["Config", "ReinforcePP"]


class Config(PlacedKL):
    """The paper's terms."""

    kl_coefficient: float = Field(0.01, ge=0)
    """beta; 0 needs no reference model."""
    kl_place: Literal["reward", "loss"] = "reward"
    """In the reward (k1, with return-to-go) or in the loss (k2, k3_k2, rho_k3 or k3)."""
    kl_estimator: Estimator = "k1"
    """Estimator of the KL to the reference."""
    discount: float = Field(1.0, gt=0, le=1)
    """gamma, per sampled token."""
    whiten_by: Literal["token", "sequence"] = "token"
    """Whether every token or every rollout counts the same in mean and variance."""
    ddof: Literal[0, 1] = 1
    """Degrees of freedom taken from the variance."""
    clip_low: float = Field(0.2, gt=0, le=1)
    """How far below 1 the ratio may push."""
    clip_high: float = Field(0.2, gt=0)
    """How far above 1 the ratio may push."""
    reduction: str = "token-mean"
    """Token weights: see posttrain.functional.reduce."""


class ReinforcePP:
    """Token returns, whitened over the batch, in PPO's clip."""

    def __init__(self, config: Config) -> None:
        self.config = config
        penalised = config.kl_coefficient > 0
        self.needs = Needs(
            ref_logprobs=penalised,
            old_logprobs=penalised and config.kl_in_reward,
            streams={"policy": config.reduction, **config.kl_streams},
        )

    def keep(self, group: Group) -> bool:
        """Every group trains."""
        return True

    def advantages(self, groups: Sequence[Group]) -> list[list[np.ndarray]]:
        """The rewards themselves; `refine` makes them token advantages."""
        return over_batch(groups, lambda rewards: rewards)

    def refine(self, samples: Sequence[Sample]) -> list[Sample]:
        """Returns to go of reward minus KL, whitened over every token of the batch."""
        config, book = self.config, open_book(samples)
        rewards = token_rewards(book.rewards, book.rows)
        if config.kl_coefficient and config.kl_in_reward:
            old, ref = book.read("old_logprobs"), book.read("ref_logprobs")
            rewards = with_kl(rewards, old, ref, config.kl_coefficient)
        returns = returns_to_go(rewards, book.rows, book.count, discount=config.discount)
        white = whiten(returns, book.rows, book.count, by=config.whiten_by, ddof=config.ddof)
        return book.written("advantages", white)

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """Clipped surrogate, and beta x KL if the KL is in the loss."""
        bounds = {"clip_low": self.config.clip_low, "clip_high": self.config.clip_high}
        ratio = token_ratio(logprobs, anchor(batch, logprobs))
        policy = clipped(ratio, batch.advantages, **bounds)
        parts = {"policy": policy, **kl_term(self.config, batch, logprobs)}
        return weighted(batch, parts, clip_shares(ratio, batch.advantages, **bounds))
