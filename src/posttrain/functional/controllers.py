"""Coefficients that follow a measurement: the KL penalty's and the entropy bonus's.

Both are values: ``after(measurement)`` returns the next one, so that a checkpoint holds them and nothing hides.
KL targets differ a hundredfold between units, so a unit is always named:

sequence-sum   mean over rows of the row's summed KL     Ziegler et al., arXiv 1909.08593, section 2.2
sequence-mean  mean over rows of the row's mean per token
token-mean     mean over all tokens
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from posttrain.functional.masked import row_count, row_mean, row_sum

Unit = Literal["sequence-sum", "sequence-mean", "token-mean"]


def measure_kl(kl: Tensor, samples: Tensor, count: int, unit: Unit) -> float:
    """Reduce token KL [N] of a whole batch to ``unit``; rows without tokens are not counted; 0 without tokens."""
    rows = max(int((row_count(samples, count) > 0).sum()), 1)
    if unit == "token-mean":
        return float(kl.detach().sum()) / max(len(kl), 1)
    by_row = (row_sum if unit == "sequence-sum" else row_mean)(kl.detach(), samples, count)
    return float(by_row.sum()) / rows


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedKL:
    """A coefficient that stays."""

    coefficient: float
    """beta."""

    def after(self, kl: Tensor, samples: Tensor, count: int) -> FixedKL:
        """Return the same."""
        return self


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptiveKL:
    """beta <- beta (1 + clip(KL / target - 1, +-0.2) rows / horizon): proportional control in log space (Ziegler)."""

    coefficient: float
    """beta now."""
    target: float
    """KL to hold, in ``unit``."""
    horizon: float
    """Rows after which a KL 20 % or more off has changed beta by about a fifth."""
    unit: Unit
    """What the target is measured in."""

    def after(self, kl: Tensor, samples: Tensor, count: int) -> AdaptiveKL:
        """Return the controller after a batch with token KL [N] in ``count`` rows."""
        rows = int((row_count(samples, count) > 0).sum())
        return self.after_measured(measure_kl(kl, samples, count, self.unit), rows)

    def after_measured(self, kl: float, rows: int) -> AdaptiveKL:
        """Return the controller after a batch of ``rows`` rows whose KL in ``unit`` was ``kl``."""
        error = min(max(kl / self.target - 1, -0.2), 0.2)
        return replace(self, coefficient=self.coefficient * (1 + error * rows / self.horizon))


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptiveEntropy:
    """An entropy bonus only while entropy is at or below target (Skywork-OR1, arXiv 2505.22312)."""

    coefficient: float = 0.0
    """Grows while entropy is low and shrinks while it is not."""
    target: float = 0.2
    """Entropy per token to keep, in nats."""
    change: float = 0.005
    """Step of the coefficient."""
    largest: float = 1.0
    """Upper bound of the coefficient."""
    last: float = float("inf")
    """Entropy of the step before."""

    @property
    def used(self) -> float:
        """The coefficient to apply now: 0 unless the last known entropy was at or below the target."""
        return self.coefficient if self.last <= self.target else 0.0

    def after(self, entropy: float) -> AdaptiveEntropy:
        """Return the controller after a step of this mean token entropy."""
        change = self.change if entropy <= self.target else -self.change
        return replace(self, coefficient=min(self.largest, max(0.0, self.coefficient + change)), last=entropy)
