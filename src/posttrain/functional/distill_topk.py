"""Divergences from a few tokens per position: truncated, renormalised, with a tail bucket, generalised.

Inputs are the log-probabilities, [N, k], that student and teacher give the SAME k tokens (the teacher's or the
student's top k). What happens to the rest of the vocabulary:
truncated      ignored: may be negative, and is least at the renormalised teacher (a trap; offered for comparison)
renormalised   both sides rescaled to sum to one: blind to mass outside
tail           one more bucket with the rest: between 0 and the full KL           self-distillation PO; TRL's SDPO
generalised    sum p log(p / q) - p + q: never negative, term by term             multi-teacher OPD
Forward KL needs the teacher on its own top k; reverse KL needs the teacher on the student's tokens.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from posttrain.functional.distill import kl
from posttrain.functional.preference_free import log1mexp

Direction = Literal["forward", "reverse"]
Rest = Literal["truncated", "renormalised", "tail", "generalised"]


def topk_divergence(
    student: Tensor, teacher: Tensor, *, direction: Direction, rest: Rest = "tail", complete: bool = False
) -> Tensor:
    """KL(teacher || student) ("forward") or KL(student || teacher) ("reverse") from k tokens, [N].

    ``student``, ``teacher`` [N, k] are log-probabilities of the full distributions at the same tokens; the teacher
    carries no gradient. ``complete`` says that k is the whole vocabulary: there is no tail. Raises ValueError for
    different shapes or an unknown name.
    """
    if student.shape != teacher.shape:
        raise ValueError(f"both need the same k tokens, got {tuple(student.shape)} and {tuple(teacher.shape)}")
    if direction not in ("forward", "reverse"):
        raise ValueError(f"direction is forward or reverse, got {direction!r}")
    teacher = teacher.detach()
    first, second = (teacher, student) if direction == "forward" else (student, teacher)
    if rest == "truncated" or (rest == "tail" and complete):
        return kl(first, second)
    if rest == "renormalised":
        return _not_negative(kl(_renormalised(first), _renormalised(second)))
    if rest == "tail":
        return _not_negative(generalised_kl(with_tail(first), with_tail(second)))
    if rest != "generalised":
        raise ValueError(f"unknown rest {rest!r}; truncated, renormalised, tail or generalised")
    return _not_negative(generalised_kl(first, second))


def generalised_kl(first: Tensor, second: Tensor) -> Tensor:
    """sum p log(p / q) - p + q of log-measures [N, k], [N]: never negative even where they don't sum to one.

    The slope log(p / q) vanishes exactly where p = q. Equals KL where both sum to one.
    """
    return kl(first, second) + (second.exp() - first.exp()).sum(dim=-1)


def with_tail(logprobs: Tensor) -> Tensor:
    """Append the log of the mass outside, log(1 - sum p), to ``logprobs`` [N, k]; [N, k + 1].

    A rest that rounds to nothing is held at the dtype's epsilon, so value and gradient stay finite.
    """
    rest = log1mexp(torch.logsumexp(logprobs, dim=-1, keepdim=True))
    return torch.cat([logprobs, rest], dim=-1)


def support_overlap(student_ids: Tensor, teacher_ids: Tensor) -> Tensor:
    """Share of the student's top k tokens that are among the teacher's, [N]; ids int64 [N, k], different in a row.

    A small share at the start says that the teacher is too far to be imitated on the student's own prefixes.
    """
    shared = (student_ids[:, :, None] == teacher_ids[:, None, :]).any(dim=-1)
    return shared.double().mean(dim=-1)


def _renormalised(logprobs: Tensor) -> Tensor:
    return logprobs - torch.logsumexp(logprobs, dim=-1, keepdim=True)


def _not_negative(values: Tensor) -> Tensor:
    """Lift what rounding put below zero, leaving the gradient as it is: a clamp would cut it off."""
    return torch.where(values < 0, values - values.detach(), values)
