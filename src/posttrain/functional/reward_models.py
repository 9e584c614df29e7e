"""Losses of reward models: pairs, rankings and single steps of a solution.

Bradley-Terry: -log sigmoid(chosen - rejected - margin) + centring (chosen + rejected)^2 (InstructGPT, arXiv
2203.02155 eq. 1; margin: Llama 2, arXiv 2307.09288 eq. 2; centring: arXiv 2312.09244). Rankings:
preference_lists.plackett_luce and all_pairs on scores. Process reward models: binary cross-entropy per step (arXiv
2305.20050), labels from rollouts (Math-Shepherd, arXiv 2312.08935 eq. 3 and 4).
Scores are known up to a constant per prompt: never compare them between prompts.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, logsigmoid

from posttrain.functional.masked import row_count, row_sum


def bradley_terry(chosen: Tensor, rejected: Tensor, *, margin: Tensor | float = 0.0, centring: float = 0.0) -> Tensor:
    """-log sigmoid(chosen - rejected - margin) + centring x (chosen + rejected)^2, [P].

    Scores [P]; ``margin`` [P] asks for a wider gap where the preference is clearer (arXiv 2307.09288 eq. 2);
    ``centring`` keeps scores near zero (arXiv 2312.09244), which the first term leaves open.
    """
    return -logsigmoid(chosen - rejected - margin) + centring * (chosen + rejected) ** 2


def last_token(values: Tensor, samples: Tensor, count: int) -> Tensor:
    """Value at the last trained token of each row, [count], of ``values`` [N]: where a sequence head is read.

    Places that are not trained, padding among them, do not exist here. ``samples`` must be ascending. Raises
    ValueError if a row has no token, because then there is no score.
    """
    counts = row_count(samples, count)
    if bool((samples[1:] < samples[:-1]).any()):
        raise ValueError("samples must be ascending (row after row) to know which token is last")
    empty = torch.nonzero(counts == 0).flatten().tolist()
    if empty:
        raise ValueError(f"rows {empty} have no sampled token to read a score at; leave them out")
    return values[counts.cumsum(0) - 1]


def step_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy of each labelled step, [S]; ``labels`` [S] in [0, 1], soft ones allowed.

    arXiv 2305.20050 (hard labels), arXiv 2312.08935 eq. 2 (soft ones, whose least value is the labels' entropy).
    ``logits`` [S] are read at each step's last token. Raises ValueError for a label outside [0, 1].
    """
    if bool(((labels < 0) | (labels > 1) | labels.isnan()).any()):
        raise ValueError("step labels must lie between 0 and 1; select the labelled steps first")
    return binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="none")


def two_class_step_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of each step with a head of two logits (wrong, right), [S]; ``labels`` int64 [S]."""
    return cross_entropy(logits, labels, reduction="none")


def until_first_error(labels: Tensor, samples: Tensor, count: int) -> Tensor:
    """Which steps to train, bool [S]: all up to and including the first with label 0 of its solution.

    What follows a mistake was not judged (PRM800K, arXiv 2305.20050). ``samples`` int64 [S], ascending,
    names each step's solution.
    """
    wrong = (labels == 0).long()
    before = wrong.cumsum(0) - wrong
    totals = row_sum(wrong, samples, count)
    offsets = totals.cumsum(0) - totals
    return before == offsets[samples]


def rollout_labels(right_counts: Tensor, rollout_count: int, *, soft: bool) -> Tensor:
    """Label of each step from rollouts that continue it, float64 [S].

    Soft: share of the rollouts that end right (arXiv 2312.08935 eq. 4); hard: whether any does (eq. 3). Raises
    ValueError for impossible counts.
    """
    if rollout_count < 1 or bool(((right_counts < 0) | (right_counts > rollout_count)).any()):
        raise ValueError(f"right counts must lie between 0 and the {rollout_count} rollouts, at least 1")
    return right_counts.double() / rollout_count if soft else (right_counts > 0).double()
