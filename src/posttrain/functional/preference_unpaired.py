"""Losses on single answers labelled good or bad, one number per answer, [R]: KTO and BCO.

KTO (arXiv 2402.01306 eq. 7): with r = log pi - log ref and a baseline z0 estimating KL(pi || ref),
    good: w_good (1 - sigmoid(beta (r - z0)))        bad: w_bad (1 - sigmoid(beta (z0 - r))).
z0 comes from answers shown under other prompts of the batch, so a batch needs two answers and a fixed order.
BCO (arXiv 2404.04656): -log sigmoid(+-(beta r - shift)), shift a running mean of both classes' rewards.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def mismatched(count: int) -> Tensor:
    """Row whose answer is shown under each row's prompt to estimate KTO's baseline: the row before it, int64 [count].

    Raises ValueError for fewer than two rows: a row cannot be mismatched with itself.
    """
    if count < 2:
        raise ValueError(f"KTO's baseline needs at least 2 rows per batch, got {count}")
    return torch.arange(-1, count - 1) % count


def kto_baseline(log_ratios: Tensor) -> Tensor:
    """z0: mean of the mismatched answers' ``log_ratios`` [M], not below 0, detached scalar.

    arXiv 2402.01306. M must be the mismatched answers of the WHOLE step, gathered over ranks. Raises
    ValueError when there are none.
    """
    if log_ratios.numel() == 0:
        raise ValueError("KTO's baseline needs the log ratios of mismatched answers, got none")
    return log_ratios.detach().double().mean().clamp(min=0)


def kto(
    log_ratios: Tensor,
    desirable: Tensor,
    baseline: Tensor | float,
    *,
    beta: float = 0.1,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Tensor:
    """Prospect-theory loss of each answer, [R]. KTO, arXiv 2402.01306 eq. 7; ``desirable`` is bool [R]."""
    drift = beta * (log_ratios - baseline)
    good = desirable_weight * torch.sigmoid(-drift)
    return torch.where(desirable, good, undesirable_weight * torch.sigmoid(drift))


def kto_weight_range(desirable: int, undesirable: int, *, undesirable_weight: float = 1.0) -> tuple[float, float]:
    """Least and greatest good weight that balance the classes, given their counts.

    weight_good x desirable / (weight_bad x undesirable) lies in [1, 4/3]: arXiv 2402.01306 eq. 8. Raises ValueError
    when a class is empty.
    """
    if desirable < 1 or undesirable < 1:
        raise ValueError(f"both classes need answers, got {desirable} good and {undesirable} bad")
    balanced = undesirable_weight * undesirable / desirable
    return balanced, balanced * 4 / 3


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardShift:
    """BCO's running means of the rewards of good and bad answers; a run's state, kept in its checkpoint."""

    desirable_sum: float = 0.0
    """Sum of rewards (beta x log ratio) of the good answers seen."""
    desirable_count: int = 0
    """Good answers seen."""
    undesirable_sum: float = 0.0
    """Sum of rewards of the bad answers seen."""
    undesirable_count: int = 0
    """Bad answers seen."""

    @property
    def value(self) -> float:
        """Half the sum of both classes' means, arXiv 2404.04656; 0 before both were seen."""
        if not self.desirable_count or not self.undesirable_count:
            return 0.0
        good = self.desirable_sum / self.desirable_count
        return 0.5 * (good + self.undesirable_sum / self.undesirable_count)

    def observe(self, rewards: Tensor, desirable: Tensor) -> RewardShift:
        """Return the state after training on ``rewards`` [R] of the whole step; never call it in evaluation."""
        values = rewards.detach().double()
        return replace(
            self,
            desirable_sum=self.desirable_sum + float(values[desirable].sum()),
            desirable_count=self.desirable_count + int(desirable.sum()),
            undesirable_sum=self.undesirable_sum + float(values[~desirable].sum()),
            undesirable_count=self.undesirable_count + int((~desirable).sum()),
        )


def bco(log_ratios: Tensor, desirable: Tensor, *, beta: float = 0.1, shift: float | Tensor = 0.0) -> Tensor:
    """-log sigmoid(r - shift) for good answers, -log sigmoid(shift - r) for bad ones, r = beta log ratio, [R].

    BCO, arXiv 2404.04656, without its density-ratio weights for mismatched prompt sets.
    """
    drift = beta * log_ratios - shift
    return -logsigmoid(torch.where(desirable, drift, -drift))
