"""Choose among sampled answers: best of n, votes, aggregated step scores, beams, and what to keep for fine-tuning.

Best of n and weighted vote: Cobbe et al., arXiv 2110.14168; Li et al., arXiv 2206.02336. Aggregation of step scores
and verifier beam search: Snell et al., arXiv 2408.03314. Rejection fine-tuning: arXiv 2308.01825. Unbiased
estimates of what these choices are worth stand in `passk`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

PROBABILITY_FLOOR = 1e-12
"""Step probabilities are held this far inside (0, 1) before their log odds are taken."""


def pick_best(scores: Sequence[float]) -> int:
    """Index of the highest score, the first of equal ones (best of n, arXiv 2110.14168).

    Raises ValueError if there is no score or one is NaN.
    """
    return rank(scores)[0]


def rank(scores: Sequence[float]) -> list[int]:
    """Indices from the highest score to the lowest; equal ones keep their order. Raises ValueError as `pick_best`."""
    values = np.asarray(scores, dtype=np.float64)
    if not values.size or bool(np.isnan(values).any()):
        raise ValueError(f"ranking needs at least one score and no NaN, got {list(scores)}")
    return [int(index) for index in np.argsort(-values, kind="stable")]


def vote_totals(answers: Sequence[str | None], scores: Sequence[float] | None = None) -> dict[str, float]:
    """Sum of scores of each answer, in order of first appearance (arXiv 2206.02336); None answers don't vote.

    Without ``scores`` every sample has one vote: majority, or self-consistency (arXiv 2203.11171). Raises ValueError
    if the lengths differ.
    """
    weights = [1.0] * len(answers) if scores is None else scores
    totals: dict[str, float] = {}
    for answer, weight in zip(answers, weights, strict=True):
        if answer is not None:
            totals[answer] = totals.get(answer, 0.0) + weight
    return totals


def vote_winner(totals: Mapping[str, float]) -> str | None:
    """Answer with the largest total, the first seen of equal ones; None if nobody voted."""
    return max(totals, key=totals.__getitem__) if totals else None


def aggregate_min(steps: Sequence[float]) -> float:
    """The weakest step: a solution is as good as its worst step (arXiv 2305.20050)."""
    return float(np.min(_steps(steps)))


def aggregate_product(steps: Sequence[float]) -> float:
    """Probability that every step is right, steps taken as independent; falls with the number of steps."""
    return float(np.prod(_steps(steps)))


def aggregate_last(steps: Sequence[float]) -> float:
    """The last step's score (arXiv 2408.03314)."""
    return float(_steps(steps)[-1])


def aggregate_mean(steps: Sequence[float]) -> float:
    """Mean over steps; one bad step among many is hardly seen."""
    return float(np.mean(_steps(steps)))


def aggregate_log_odds(steps: Sequence[float]) -> float:
    """Sum of log(p / (1 - p)), probabilities held inside (0, 1); grows with the number of good steps."""
    held = np.clip(_steps(steps), PROBABILITY_FLOOR, 1 - PROBABILITY_FLOOR)
    return float(np.sum(np.log(held) - np.log1p(-held)))


AGGREGATIONS: dict[str, Callable[[Sequence[float]], float]] = {
    "min": aggregate_min,
    "product": aggregate_product,
    "last": aggregate_last,
    "mean": aggregate_mean,
    "log_odds": aggregate_log_odds,
}
"""Ways to turn step probabilities into one score. Only the same one may be calibrated and searched with."""


def keep_beams(scores: Sequence[float], texts: Sequence[str], *, width: int) -> list[int]:
    """Indices of the ``width`` best different beams, best first (arXiv 2408.03314).

    Of equal texts the best scored stays: identical beams would spend the budget on one path. Raises ValueError if the
    lengths differ or ``width`` is below 1.
    """
    if width < 1 or len(scores) != len(texts):
        raise ValueError(f"need width >= 1 and one text per score, got {width}, {len(scores)} and {len(texts)}")
    seen: set[str] = set()
    kept: list[int] = []
    for index in rank(scores):
        if texts[index] not in seen:
            seen.add(texts[index])
            kept.append(index)
    return kept[:width]


def keep_right(
    texts: Sequence[str], right: Sequence[bool], *, cap: int, normalise: Callable[[str], str] | None = None
) -> list[int]:
    """Indices of the first ``cap`` right answers of one task whose texts differ (arXiv 2308.01825).

    ``normalise`` maps a text to what is compared; without it, white space is ignored. The cap keeps easy tasks, which
    yield most right answers, from filling the data. Raises ValueError if the lengths differ or ``cap`` is below 1.
    """
    if cap < 1:
        raise ValueError(f"cap must be at least 1, got {cap}")
    key = normalise or _without_space
    first: dict[str, int] = {}
    for index, (text, ok) in enumerate(zip(texts, right, strict=True)):
        if ok:
            first.setdefault(key(text), index)
    return list(first.values())[:cap]


def best_of_n_kl_bound(n: int) -> float:
    """Upper bound log n - (n - 1) / n on KL(best of n || policy) in nats (arXiv 2401.01879).

    Raises ValueError for n below 1.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    return math.log(n) - (n - 1) / n


def _without_space(text: str) -> str:
    return "".join(text.split())


def _steps(steps: Sequence[float]) -> np.ndarray:
    values = np.asarray(steps, dtype=np.float64)
    if values.ndim != 1 or not values.size or bool(np.isnan(values).any()):
        raise ValueError(f"a solution needs at least one step score and no NaN, got {list(steps)}")
    return values
