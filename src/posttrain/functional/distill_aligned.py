"""Distillation between different tokenizers: sorted distributions (ULD) and spans that end at the same byte.

ULD (arXiv 2402.12030): L1 distance of sorted probabilities. It needs no common vocabulary and is blind to WHICH
token is likely: [.9, .1] and [.1, .9] are at distance 0. Spans: tokens of both sides are grouped where they share a
boundary in bytes; by the chain rule a span's log-probability is the sum of its tokens', comparable on both sides. It
is exact only for the tokenisation at hand: other ways to cut the same text into tokens are not summed over.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

Span = tuple[tuple[int, ...], tuple[int, ...]]
"""Indices of the student's and of the teacher's tokens that cover the same bytes."""


def sorted_l1(student_probabilities: Tensor, teacher_probabilities: Tensor) -> Tensor:
    """L1 distance of both distributions sorted, the shorter one padded with 0, [N]; inputs [N, V] and [N, V'].

    Universal logit distillation, arXiv 2402.12030. The teacher carries no gradient.
    """
    width = max(student_probabilities.shape[-1], teacher_probabilities.shape[-1])
    student = _sorted_padded(student_probabilities, width)
    return (student - _sorted_padded(teacher_probabilities.detach(), width)).abs().sum(dim=-1)


def shared_spans(student_ends: Sequence[int], teacher_ends: Sequence[int]) -> list[Span]:
    """Group tokens into the smallest spans that end at a byte offset both tokenisations share.

    ``*_ends``: byte offset at which each token ends, strictly ascending. A rest without a common end is left out.
    Raises ValueError if offsets do not ascend.
    """
    for ends in (student_ends, teacher_ends):
        if any(later <= earlier for earlier, later in itertools.pairwise(ends)):
            raise ValueError(f"byte ends must ascend strictly, got {list(ends)}")
    spans: list[Span] = []
    student_from = teacher_from = 0
    positions = {end: index for index, end in enumerate(teacher_ends)}
    for index, end in enumerate(student_ends):
        if end in positions:
            upto = positions[end] + 1
            spans.append((tuple(range(student_from, index + 1)), tuple(range(teacher_from, upto))))
            student_from, teacher_from = index + 1, upto
    return spans


def span_advantages(
    student_logprobs: Tensor,
    teacher_logprobs: Tensor,
    spans: Sequence[Span],
    *,
    spread: Literal["divide", "broadcast"] = "broadcast",
) -> Tensor:
    """Teacher's minus student's log-probability of each span, given to the student's tokens of the span, detached, [N].

    "broadcast" gives every token the whole span's number, which is the policy gradient of the span (its log-probability
    is the sum of its tokens'); "divide" splits it, so that a row's total is the difference of both log-probabilities.
    Tokens outside spans get 0. Raises ValueError for an unknown name.
    """
    if spread not in ("divide", "broadcast"):
        raise ValueError(f"spread is divide or broadcast, got {spread!r}")
    student, teacher = student_logprobs.detach(), teacher_logprobs.detach()
    advantages = torch.zeros_like(student)
    for own, others in spans:
        difference = teacher[list(others)].sum() - student[list(own)].sum()
        advantages[list(own)] = difference / len(own) if spread == "divide" else difference
    return advantages


def _sorted_padded(probabilities: Tensor, width: int) -> Tensor:
    ordered = probabilities.sort(dim=-1, descending=True).values
    return torch.nn.functional.pad(ordered, (0, width - ordered.shape[-1]))
