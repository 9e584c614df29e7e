"""Combine several reward models into one score, so that no single one's mistake is worth exploiting.

Coste et al., arXiv 2310.02743 section 3: mean, worst case (min over members), uncertainty-weighted (mean minus a
coefficient times the variance over members). Bring members to one scale first: a raw minimum picks the member with
the smallest scale, whatever it thinks.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

Combination = Literal["mean", "worst", "uncertainty_weighted", "mean_minus_deviation"]


def normalise_members(scores: Tensor, reference: Tensor) -> Tensor:
    """Each member's ``scores`` [M, R] in units of its own spread on a fixed ``reference`` set [M, F], [M, R].

    Population mean and standard deviation (ddof 0) of the reference scores. Raises ValueError if a member gives all
    reference answers the same score.
    """
    deviation = reference.std(dim=1, keepdim=True, correction=0)
    flat = (deviation[:, 0] == 0).nonzero().flatten().tolist()
    if flat:
        raise ValueError(f"members {flat} score all reference answers alike; they have no scale to normalise by")
    return (scores - reference.mean(dim=1, keepdim=True)) / deviation


def combine(scores: Tensor, how: Combination, *, coefficient: float = 0.5, ddof: int = 0) -> Tensor:
    """One score per answer, [R], from ``scores`` [M, R] of M members; arXiv 2310.02743 section 3.

    ``coefficient`` weighs the variance (or the standard deviation) over members, whose ``ddof`` is 0 or 1. Raises
    ValueError for an unknown name, or for ddof 1 with one member.
    """
    if how == "mean":
        return scores.mean(dim=0)
    if how == "worst":
        return scores.min(dim=0).values
    if scores.shape[0] <= ddof:
        raise ValueError(f"the spread of {scores.shape[0]} members with ddof {ddof} does not exist")
    if how == "uncertainty_weighted":
        return scores.mean(dim=0) - coefficient * scores.var(dim=0, correction=ddof)
    if how == "mean_minus_deviation":
        return scores.mean(dim=0) - coefficient * scores.std(dim=0, correction=ddof)
    raise ValueError(f"unknown combination {how!r}; mean, worst, uncertainty_weighted or mean_minus_deviation")


def disagreement(scores: Tensor) -> Tensor:
    """Standard deviation over members (ddof 0), [R]: its growth on the policy's answers is a sign of hacking."""
    return scores.std(dim=0, correction=0)
