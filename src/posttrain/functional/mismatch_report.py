"""How far the engine's policy and the learner's are apart, in the numbers that raise an alarm.

Compute it for a whole optimizer step. E[w] = 1 holds over sampled tokens, so a mean weight far from 1 shows a bug
(temperature, template, tokenizer, top-p), not staleness.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from posttrain.functional.masked import row_count, row_sum
from posttrain.functional.ratios import LIMIT
from posttrain.functional.rejection import divergence


@dataclass(frozen=True, kw_only=True, slots=True)
class Mismatch:
    """Numbers over the trained tokens of one step; log w = old - rollout log-probability, in nats."""

    mean_absolute: float
    """Mean |log w|."""
    k1: float
    """Mean -log w: estimates KL(rollout || old), may be negative."""
    k3: float
    """Mean w - 1 - log w: the same, never negative."""
    chi_square: float
    """Mean w^2 - 1 over tokens."""
    chi_square_sequence: float
    """The same with each row's product of weights, over rows with tokens."""
    effective_share: float
    """(sum w)^2 / (N sum w^2): effective sample size as a share of the tokens."""
    mean_weight: float
    """Mean w."""
    largest_weight: float
    """Largest w."""
    far_share: float
    """Share of tokens with |log w| above the far bound."""
    correlation: float
    """Pearson correlation of the two probabilities; NaN where one does not vary."""
    dropped_share: float
    """Share of tokens that a correction dropped."""


def report(
    old_logprobs: Tensor,
    rollout_logprobs: Tensor,
    samples: Tensor,
    count: int,
    *,
    keep: Tensor | None = None,
    far: float = 1.0,
) -> Mismatch:
    """Compare the two, [N] each; ``keep`` bool [N] are the tokens a correction kept. NaN throughout for no tokens."""
    log_weights = (old_logprobs - rollout_logprobs).detach().to(torch.float64)
    weights = log_weights.clamp(-LIMIT, LIMIT).exp()
    products = row_sum(log_weights, samples, count)[row_count(samples, count) > 0].clamp(-LIMIT, LIMIT)
    return Mismatch(
        mean_absolute=float(log_weights.abs().mean()),
        k1=float(-log_weights.mean()),
        k3=float(divergence(log_weights, "k3").mean()),
        chi_square=float((weights**2).mean() - 1),
        chi_square_sequence=float((2 * products).exp().mean() - 1),
        effective_share=effective_share(weights),
        mean_weight=float(weights.mean()),
        largest_weight=float(weights.max()) if len(weights) else float("nan"),
        far_share=float((log_weights.abs() > far).double().mean()),
        correlation=_correlation(old_logprobs.detach().exp(), rollout_logprobs.detach().exp()),
        dropped_share=0.0 if keep is None else float((~keep).double().mean()),
    )


def effective_share(weights: Tensor) -> float:
    """(sum w)^2 / (N sum w^2) of ``weights`` [N]; 1 if all are equal, NaN if there are none."""
    return float(weights.sum() ** 2 / (len(weights) * (weights**2).sum())) if len(weights) else float("nan")


def _correlation(a: Tensor, b: Tensor) -> float:
    a, b = a.double() - a.double().mean(), b.double() - b.double().mean()
    scale = float(a.norm() * b.norm())
    return float((a * b).sum()) / scale if scale > 0 else float("nan")
