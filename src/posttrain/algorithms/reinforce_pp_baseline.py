"""REINFORCE++-baseline: https://arxiv.org/abs/2501.03262, section on several rollouts per prompt.

Assumes rollouts of one group share one prompt. The group gives the baseline, the whole batch the scale.

    A'_i = r_i - mean(r of the group)
    A_t  = (A'_i - mean(A')) / sqrt(var(A') + 1e-8)                                   over all tokens of the batch
    L    = 1/N sum [ -min(r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t) + beta k2_t ]

A group of equal rewards stays at exactly 0: subtracting the batch's mean would give all of it one common push.
Defaults: k2 in the loss is the paper's; beta 0.01 and clip 0.2 are those of its code (OpenRLHF). Whether a token or a
rollout counts once in mean and variance is unsaid; its code counts tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from posttrain.functional.groups import centred
from posttrain.functional.ratios import token_ratio
from posttrain.functional.surrogates import clipped
from posttrain.functional.whiten import whiten
from posttrain.policy_gradient import (
    Estimator,
    PlacedKL,
    anchor,
    by_group,
    clip_shares,
    kl_term,
    less_kl_to_go,
    open_book,
    weighted,
)
from posttrain.types import Group, Loss, Needs, Sample, TokenBatch

__all__ = ["Config", "ReinforcePPBaseline"]


class Config(PlacedKL):
    """The paper's terms."""

    kl_coefficient: float = Field(0.01, ge=0)
    """beta; 0 needs no reference model."""
    kl_estimator: Estimator = "k2"
    """Estimator of the KL to the reference."""
    whiten_by: Literal["token", "sequence"] = "token"
    """Whether every token or every rollout counts the same in mean and variance."""
    clip_low: float = Field(0.2, gt=0, le=1)
    """How far below 1 the ratio may push."""
    clip_high: float = Field(0.2, gt=0)
    """How far above 1 the ratio may push."""
    reduction: str = "token-mean"
    """Token weights: see posttrain.functional.reduce."""


class ReinforcePPBaseline:
    """Group baseline, batch scale, PPO's clip."""

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
        """Reward minus group mean; `refine` scales it."""
        return by_group(groups, centred)

    def refine(self, samples: Sequence[Sample]) -> list[Sample]:
        """Whiten over every token of the batch, then take the KL to go if the KL is in the reward."""
        config, book = self.config, open_book(samples)
        raw = book.read("advantages")
        still = torch.zeros(len(book.samples), dtype=torch.bool)
        for number, sample in enumerate(book.samples):
            still[number] = not np.any(sample.advantages[sample.loss_mask])
        white = whiten(raw, book.rows, book.count, by=config.whiten_by)
        flat = torch.repeat_interleave(still, torch.tensor([int(s.loss_mask.sum()) for s in book.samples]))
        samples = book.written("advantages", torch.where(flat, torch.zeros_like(white), white))
        inside = config.kl_coefficient and config.kl_in_reward
        return less_kl_to_go(samples, config.kl_coefficient) if inside else samples

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """Clipped surrogate, and beta x KL if the KL is in the loss."""
        bounds = {"clip_low": self.config.clip_low, "clip_high": self.config.clip_high}
        ratio = token_ratio(logprobs, anchor(batch, logprobs))
        policy = clipped(ratio, batch.advantages, **bounds)
        parts = {"policy": policy, **kl_term(self.config, batch, logprobs)}
        return weighted(batch, parts, clip_shares(ratio, batch.advantages, **bounds))
