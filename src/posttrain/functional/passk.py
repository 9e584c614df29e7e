"""Unbiased pass@k, pass^k, majority vote and best-of-n from n samples of one prompt.

pass@k = 1 - C(n-c, k) / C(n, k) with n samples of which c are right (Chen et al. 2021, arXiv 2107.03374): the
probability that a random k of the n samples hold a right one. The plug-in 1 - (1 - c/n)^k is biased low, and so is
a bootstrap with replacement. All functions take one prompt; average them over prompts, never pool the counts.
Ties are not broken but averaged over: every number is the expectation over random tie-breaks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np


def pass_at_k(sample_count: int, right_count: int, k: int) -> float:
    """Return the probability that at least one of k samples, drawn without replacement, is right.

    Computed as 1 - prod_{i=n-c+1..n} (1 - k/i), which neither overflows nor cancels.
    Raises ValueError if k is above ``sample_count`` (no unbiased estimate exists) or a count is impossible.
    """
    _require_counts(sample_count, right_count, k)
    if sample_count - right_count < k:
        return 1.0
    drawn_from = np.arange(sample_count - right_count + 1, sample_count + 1, dtype=np.float64)
    return float(1.0 - np.prod(1.0 - k / drawn_from))


def pass_hat_k(sample_count: int, right_count: int, k: int) -> float:
    """Return the probability that all of k samples, drawn without replacement, are right: C(c, k) / C(n, k).

    Raises ValueError as `pass_at_k` does.
    """
    _require_counts(sample_count, right_count, k)
    chances = ((right_count - i) / (sample_count - i) for i in range(k))
    return math.prod(chances) if right_count >= k else 0.0


def majority_vote(answers: Sequence[str | None], right: Sequence[bool]) -> float:
    """Return the expected correctness of the most frequent answer.

    ``answers``: the extracted answer of each sample, None where none could be read (such a sample has no vote).
    ``right``: whether each sample is right. Answers that tie for the most votes are drawn with equal chance, and an
    answer whose samples were judged differently counts with its share of right ones. 0 if nobody has a vote.
    Raises ValueError if the lengths differ or there is no sample.
    """
    _require_samples(answers, right)
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return 0.0
    most = max(votes.values())
    winners = [answer for answer, count in votes.items() if count == most]
    hits = sum(bool(ok) for answer, ok in zip(answers, right, strict=True) if answer in winners)
    return hits / (most * len(winners))


def weighted_vote(answers: Sequence[str | None], scores: Sequence[float]) -> str | None:
    """Return the answer whose samples have the largest sum of scores; the first seen wins a tie.

    None if no sample has an answer. Raises ValueError if the lengths differ or there is no sample.
    """
    _require_samples(answers, scores)
    sums: dict[str, float] = {}
    for answer, score in zip(answers, scores, strict=True):
        if answer is not None:
            sums[answer] = sums.get(answer, 0.0) + score
    return max(sums, key=sums.__getitem__) if sums else None


def best_of_n(scores: Sequence[float], values: Sequence[float], n: int) -> float:
    """Return the expected value of the sample with the best score among n, drawn without replacement from N.

    ``scores`` [N] choose, ``values`` [N] count. Unbiased: sum_i C(rank_i, n-1) / C(N, n) * value_i with the ascending
    rank from 0; samples with the same score share the weight of their ranks.
    Raises ValueError if n is not in 1..N, the lengths differ, or a score is NaN.
    """
    _require_samples(scores, values)
    total = len(scores)
    if not 1 <= n <= total:
        raise ValueError(f"n must be from 1 to the number of samples {total}; got {n}")
    ranked = np.asarray(scores, dtype=np.float64)
    if np.isnan(ranked).any():
        raise ValueError("scores hold NaN, which has no rank; leave out the samples that could not be scored")
    weights = np.array([math.comb(rank, n - 1) / math.comb(total, n) for rank in range(total)])
    _, blocks = np.unique(ranked, return_inverse=True)
    sizes = np.bincount(blocks)
    shares = np.add.reduceat(weights, np.concatenate(([0], np.cumsum(sizes)[:-1]))) / sizes
    return float(np.dot(shares[blocks], np.asarray(values, dtype=np.float64)))


def _require_counts(sample_count: int, right_count: int, k: int) -> None:
    if not 0 <= right_count <= sample_count:
        raise ValueError(f"right_count must be from 0 to sample_count {sample_count}; got {right_count}")
    if k < 1:
        raise ValueError(f"k must be at least 1; got {k}")
    if k > sample_count:
        raise ValueError(f"pass@{k} needs at least {k} samples per prompt; got {sample_count}. Sample more or lower k.")


def _require_samples(left: Sequence[object], right: Sequence[object]) -> None:
    if len(left) != len(right):
        raise ValueError(f"one entry per sample in both arguments; got {len(left)} and {len(right)}")
    if not left:
        raise ValueError("no sample: there must be at least one")
