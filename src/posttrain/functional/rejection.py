"""Drop tokens or rows that are too far off-policy, and say what the others are then divided by.

``denominator="original"`` keeps dropped tokens in the count, so that a batch of which a twentieth is kept takes a
twentieth of a step; ``"kept"`` recomputes the reduction as if they had never been there.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from posttrain.functional.masked import row_count, row_mean, row_sum
from posttrain.functional.ratios import LIMIT
from posttrain.functional.reduce import token_weights

Statistic = Literal["mean", "sum", "max"]


def keep_weights(
    mode: str,
    samples: Tensor,
    count: int,
    keep: Tensor,
    *,
    denominator: Literal["original", "kept"] = "original",
    rollouts: Tensor | None = None,
    prompts: Tensor | None = None,
    constant: float | None = None,
) -> Tensor:
    """Token weights [N] with ``keep`` bool [N] applied: 0 where dropped. All tokens of the optimizer step at once.

    ``mode`` and the labels are those of ``reduce.token_weights``.
    """
    counted = samples if denominator == "original" else samples[keep]
    weights = token_weights(mode, row_count(counted, count), rollouts=rollouts, prompts=prompts, constant=constant)
    return torch.where(keep, weights[samples], torch.zeros_like(weights[samples]))


def divergence(log_weights: Tensor, estimator: Literal["k1", "k2", "k3"]) -> Tensor:
    """Estimate of KL(rollout || old) by token, [N]: k1 = -log w, k2 = (log w)^2 / 2, k3 = w - 1 - log w."""
    if estimator == "k1":
        return -log_weights
    if estimator == "k2":
        return 0.5 * log_weights**2
    held = log_weights.clamp(max=LIMIT)
    return torch.expm1(held) - held


def row_statistic(values: Tensor, samples: Tensor, count: int, statistic: Statistic) -> Tensor:
    """Mean, sum or largest by row, [count]; 0 for a row without tokens."""
    if statistic == "max":
        empty = values.new_full((count,), float("-inf"))
        largest = empty.scatter_reduce(0, samples, values, "amax", include_self=False)
        return torch.where(row_count(samples, count) > 0, largest, torch.zeros_like(largest))
    return (row_mean if statistic == "mean" else row_sum)(values, samples, count)


def below(values: Tensor, samples: Tensor, count: int, *, statistic: Statistic, bound: float) -> Tensor:
    """Rows whose statistic of a divergence is at most ``bound``, bool [count]; bound k1 by w with ``inside``."""
    return row_statistic(values, samples, count, statistic) <= bound


def opsm_keep(
    advantages: Tensor, behaviour_logprobs: Tensor, logprobs: Tensor, samples: Tensor, count: int, *, bound: float
) -> Tensor:
    """Off-policy sequence mask (DeepSeek-V3.2, arXiv 2512.02556, section 3.1), bool [count].

    A row is dropped only if its advantage is negative and its mean of behaviour - current log-probability exceeds
    ``bound``: learning from a bad answer that the policy would hardly give any more. ``advantages`` [N], by row mean.
    """
    drift = row_mean(behaviour_logprobs - logprobs.detach(), samples, count)
    return (row_mean(advantages, samples, count) >= 0) | (drift <= bound)
