"""How good a reward model is on held-out data: pair accuracy with interval, and calibration.

Calibration error: mean over bins of |mean predicted probability - observed share|, weighted by the bin's count
(Guo et al., arXiv 1706.04599 eq. 3). For pairs the prediction is sigmoid(chosen - rejected) that the chosen one wins.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from posttrain.functional.intervals import wilson


@dataclass(frozen=True, kw_only=True, slots=True)
class PairAccuracy:
    """Share of held-out pairs in which the chosen answer scores higher."""

    value: float
    """The share; a tie counts one half."""
    low: float
    """Lower end of Wilson's interval."""
    high: float
    """Upper end."""
    pairs: int
    """Pairs compared."""
    ties: int
    """Pairs with equal scores: many of them mean cut-off answers that lost their difference."""


def pair_accuracy(chosen: Tensor, rejected: Tensor, *, confidence: float = 0.95) -> PairAccuracy:
    """Accuracy of scores [P] on held-out pairs with its interval; raises ValueError for no pair or a NaN score.

    The interval takes pairs as independent: give one pair per prompt, or it is too narrow.
    """
    count = chosen.numel()
    if count == 0 or bool((chosen.isnan() | rejected.isnan()).any()):
        raise ValueError(f"accuracy needs scored pairs; got {count} pairs, or a score that is NaN")
    ties = int((chosen == rejected).sum())
    share = (int((chosen > rejected).sum()) + 0.5 * ties) / count
    low, high = wilson(share, count, confidence=confidence)
    return PairAccuracy(value=share, low=low, high=high, pairs=count, ties=ties)


def calibration_error(probabilities: Tensor, outcomes: Tensor, *, bins: int = 10) -> float:
    """Expected calibration error over ``bins`` equal bins of [0, 1]; arXiv 1706.04599 eq. 3.

    ``probabilities`` [P] predicted, ``outcomes`` [P] in [0, 1] observed. A perfectly calibrated model has an expected
    error above 0 on few data. Raises ValueError for no prediction or one outside [0, 1].
    """
    values = probabilities.detach().double()
    if not values.numel() or not bool(((values >= 0) & (values <= 1)).all()):
        raise ValueError("calibration needs at least one probability, all between 0 and 1")
    index = (values * bins).long().clamp(max=bins - 1)
    gaps = torch.zeros(bins, dtype=torch.float64, device=values.device).index_add(0, index, values - outcomes.double())
    return float(gaps.abs().sum() / values.numel())


def pair_calibration_error(chosen: Tensor, rejected: Tensor, *, bins: int = 10) -> float:
    """Calibration error of sigmoid(score gap) on pairs, each counted in both orders.

    Counting one order only would call a constant gap calibrated at accuracy one. Scores [P].
    """
    forward = torch.sigmoid((chosen - rejected).double())
    won = torch.ones_like(forward)
    return calibration_error(torch.cat([forward, 1 - forward]), torch.cat([won, 1 - won]), bins=bins)
