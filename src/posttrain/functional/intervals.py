"""Confidence intervals of evaluation results over prompts, and of the paired difference of two evaluations.

The prompts are the sample, not the completions: completions of one prompt are alike, so pooling them makes intervals
too narrow. Each prompt gives one number (its mean, its pass@k, ...), and

* many samples per prompt: mean +- t * s / sqrt(P) over the P prompts' numbers, Student's t with P - 1 degrees;
* one sample per prompt (every number 0 or 1): Wilson's score interval (1927), right also near 0 and 1;
* all P numbers equal: their spread says nothing, so Wilson's interval as if each prompt were one trial.

Comparing two evaluations on the same prompts takes each prompt's difference first, which removes how hard the prompts
are (Miller 2024, arXiv 2411.00640). Bounds are cut to the possible range.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np

Method = Literal["wilson", "student", "wilson-degenerate"]
"""How an interval was computed."""

MANY_DEGREES = 2000
"""From here on Student's quantile comes from its expansion around the normal one, exact to 1e-11."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A mean over prompts with its confidence interval."""

    mean: float
    """Mean of the prompts' numbers."""
    low: float
    """Lower bound."""
    high: float
    """Upper bound."""
    standard_error: float | None
    """Standard error of the mean over prompts; None for a single prompt."""
    prompts: int
    """Number of prompts."""
    confidence: float
    """Share of such intervals that hold the true mean."""
    method: Method
    """How it was computed."""


def prompt_interval(values: Sequence[float], *, confidence: float = 0.95) -> Interval:
    """Return the interval of the mean of one number per prompt, each in [0, 1].

    Raises ValueError for no value, a value outside [0, 1] or NaN, or a confidence outside (0, 1).
    """
    numbers = _require_numbers(values, confidence=confidence)
    mean, error = float(numbers.mean()), _standard_error(numbers)
    binary = bool(np.all((numbers == 0.0) | (numbers == 1.0)))
    if binary or error is None or np.ptp(numbers) == 0:
        low, high = wilson(mean, len(numbers), confidence=confidence)
        method: Method = "wilson" if binary else "wilson-degenerate"
    else:
        half = student_quantile((1 + confidence) / 2, len(numbers) - 1) * error
        low, high, method = max(0.0, mean - half), min(1.0, mean + half), "student"
    return Interval(
        mean=mean,
        low=low,
        high=high,
        standard_error=error,
        prompts=len(numbers),
        confidence=confidence,
        method=method,
    )


def paired_difference(left: Sequence[float], right: Sequence[float], *, confidence: float = 0.95) -> Interval:
    """Return the interval of the mean of right - left over the same prompts in the same order, numbers in [0, 1].

    If every prompt differs by the same amount, the half-width is Wilson's upper bound for a share of which none was
    seen. Raises ValueError if the lengths differ, and as `prompt_interval` does.
    """
    before = _require_numbers(left, confidence=confidence)
    after = _require_numbers(right, confidence=confidence)
    if len(before) != len(after):
        raise ValueError(
            f"a paired difference needs the same prompts on both sides; got {len(before)} and {len(after)}"
        )
    differences = after - before
    mean, error = float(differences.mean()), _standard_error(differences)
    method: Method = "student"
    if error is None or np.ptp(differences) == 0:
        method = "wilson-degenerate"
        half = wilson(0.0, len(differences), confidence=confidence)[1]
    else:
        half = student_quantile((1 + confidence) / 2, len(differences) - 1) * error
    return Interval(
        mean=mean,
        low=max(-1.0, mean - half),
        high=min(1.0, mean + half),
        standard_error=error,
        prompts=len(differences),
        confidence=confidence,
        method=method,
    )


def wilson(share: float, trials: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Return Wilson's score interval of a share seen in so many independent trials."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    scale = 1 + z * z / trials
    centre = (share + z * z / (2 * trials)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    low = 0.0 if share == 0 else max(0.0, centre - half)
    high = 1.0 if share == 1 else min(1.0, centre + half)
    return low, high


def student_quantile(probability: float, degrees: int) -> float:
    """Return the quantile of Student's t for a probability above one half and an integer number of degrees."""
    if not 0.5 < probability < 1 or degrees < 1:
        raise ValueError(f"need 0.5 < probability < 1 and degrees >= 1; got {probability} and {degrees}")
    if degrees >= MANY_DEGREES:
        return _expand_quantile(NormalDist().inv_cdf(probability), degrees)
    low, high = 0.0, math.pi / 2
    for _ in range(80):
        middle = (low + high) / 2
        if _central_mass(middle, degrees) < 2 * probability - 1:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees) * math.tan((low + high) / 2)


def _central_mass(angle: float, degrees: int) -> float:
    """P(|T| < sqrt(degrees) tan(angle)), a finite sum (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2 == 1
    term = cosine if odd else 1.0
    total = term if degrees > 1 else 0.0
    for k in range(3 if odd else 2, degrees - 1, 2):
        term *= (k - 1) / k * cosine * cosine
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def _expand_quantile(z: float, degrees: int) -> float:
    """Cornish-Fisher expansion of Student's quantile (Abramowitz and Stegun 26.7.5)."""
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3


def _standard_error(numbers: np.ndarray) -> float | None:
    return float(numbers.std(ddof=1)) / math.sqrt(len(numbers)) if len(numbers) > 1 else None


def _require_numbers(values: Sequence[float], *, confidence: float) -> np.ndarray:
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or not len(numbers):
        raise ValueError(f"need one number per prompt, at least one; got shape {numbers.shape}")
    if not np.all((numbers >= 0.0) & (numbers <= 1.0)):
        raise ValueError(f"every prompt's number must be in [0, 1]; got {numbers.min()} to {numbers.max()}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1; got {confidence}")
    return numbers
