"""A number gathered over the microbatches of a step, and how two of them become one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Stat:
    """A number gathered over microbatches: a weighted mean, a sum, a maximum or a minimum."""

    kind: Literal["mean", "sum", "max", "min"]
    """How two of them merge."""
    value: float
    """Numerator of the mean, or the sum, maximum, minimum so far."""
    count: float = 1.0
    """Denominator of the mean; not used by the others."""

    def merge(self, other: Stat) -> Stat:
        """Return the two combined."""
        if self.kind == "max":
            return Stat(kind="max", value=max(self.value, other.value))
        if self.kind == "min":
            return Stat(kind="min", value=min(self.value, other.value))
        return Stat(kind=self.kind, value=self.value + other.value, count=self.count + other.count)

    @property
    def result(self) -> float:
        """The number itself; NaN for a mean over nothing."""
        if self.kind != "mean":
            return self.value
        return self.value / self.count if self.count else float("nan")


def merge_stats(parts: Sequence[Mapping[str, Stat]]) -> dict[str, Stat]:
    """Combine the stats of several microbatches by name."""
    merged: dict[str, Stat] = {}
    for part in parts:
        for name, stat in part.items():
            merged[name] = merged[name].merge(stat) if name in merged else stat
    return merged


@dataclass(frozen=True, kw_only=True, slots=True)
class StepStats:
    """What one optimizer step did."""

    grad_norm: float
    """Global norm before clipping."""
    learning_rate: float
    """Used in this step."""
    skipped: bool = False
    """True if the gradient was not finite and nothing was changed."""
    version: int = 0
    """Version of the weights after the step."""
