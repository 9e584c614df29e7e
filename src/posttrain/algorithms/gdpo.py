"""GDPO, group reward-decoupled normalization: https://arxiv.org/abs/2601.05242.

Assumes several reward parts that all rollouts of a group share. Each part is standardised in its group before they are
summed, so that the part of largest variance does not swallow the others; the sum is standardised over the batch.

    a_ki = (r_ki - mean_k) / (std_k + epsilon)          part k, inside the group
    s_i  = sum_k weight_k a_ki
    A_i  = (s_i - mean(s)) / (std(s) + epsilon)         over all rollouts of the batch
    L    = 1/N sum_i sum_t -min(r_it A_i, clip(r_it, 1 - clip_low, 1 + clip_high) A_i)

A rollout whose part does not apply gets 0 from it, and the others are compared among themselves. A group in which
every part is equal stays at exactly 0. Without scores by part the reward is the one part: then this is GRPO and a
batch scale.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from posttrain.functional.groups import batch_standardised, standardised
from posttrain.functional.overlong import among
from posttrain.functional.ratios import token_ratio
from posttrain.functional.surrogates import clipped
from posttrain.policy_gradient import LossKL, anchor, clip_shares, kl_term, weighted
from posttrain.types import Group, Loss, Needs, TokenBatch

__all__ = ["GDPO", "Config"]


class Config(LossKL):
    """The paper's terms."""

    weights: Mapping[str, float] = Field(default_factory=dict)
    """Weight by reward part; 1 for a part that is not named."""
    ddof: Literal[0, 1] = 1
    """Degrees of freedom taken from the standard deviations."""
    epsilon: float = Field(1e-6, ge=0)
    """Added to the standard deviations."""
    clip_low: float = Field(0.2, gt=0, le=1)
    """How far below 1 the ratio may push."""
    clip_high: float = Field(0.2, gt=0)
    """How far above 1 the ratio may push."""
    reduction: str = "token-mean"
    """Token weights: see posttrain.functional.reduce."""


class GDPO:
    """Parts standardised apart, summed, and standardised again."""

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
        """One number per rollout, from the parts of its group and the spread of the batch."""
        sums = [self._parts(group) for group in groups]
        if not sums:
            return []
        whole = batch_standardised(torch.cat(sums), epsilon=self.config.epsilon, ddof=self.config.ddof)
        split = torch.split(whole, [len(part) for part in sums])
        scaled = [torch.where((part == 0).all(), part, found) for part, found in zip(sums, split, strict=True)]
        return [[np.asarray(a) for a in row.tolist()] for row in scaled]

    def _parts(self, group: Group) -> Tensor:
        """Weighted sum of the group's standardised parts, [G]."""
        names = dict.fromkeys(score.name for rollout in group.rollouts for score in rollout.scores)
        rows = [[next((s.value for s in r.scores if s.name == name), None) for r in group.rollouts] for name in names]
        table, weights = rows or [list(group.rewards)], [self.config.weights.get(name, 1.0) for name in names] or [1.0]
        one = functools.partial(standardised, epsilon=self.config.epsilon, ddof=self.config.ddof)
        total = torch.zeros(len(group.rollouts), dtype=torch.float64)
        for weight, row in zip(weights, table, strict=True):
            values = torch.tensor([0.0 if v is None else v for v in row], dtype=torch.float64)
            applies = torch.tensor([v is not None for v in row])
            total += weight * among(one, values, applies)
        return total

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """Clipped surrogate + beta x KL."""
        bounds = {"clip_low": self.config.clip_low, "clip_high": self.config.clip_high}
        ratio = token_ratio(logprobs, anchor(batch, logprobs))
        policy = clipped(ratio, batch.advantages, **bounds)
        parts = {"policy": policy, **kl_term(self.config, batch, logprobs)}
        return weighted(batch, parts, clip_shares(ratio, batch.advantages, **bounds))
