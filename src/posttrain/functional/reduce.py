"""Token weights: how much each trained token counts, summing to one over an optimizer step's whole batch.

A loss is then a plain weighted sum that no micro-batch split, packing or sharding can change.
Modes and who uses them (C: rows with tokens, n: tokens of a row, N: all tokens):

token-mean                1 / N                 DAPO (arXiv 2503.14476)
seq-mean-token-mean       1 / (C n_row)         GRPO (arXiv 2402.03300)
seq-mean-token-sum        1 / C                 REINFORCE on sequences; does not sum to one
seq-mean-token-sum-norm   1 / (C L)             Dr.GRPO (arXiv 2503.20783), L a constant; does not sum to one
token-sum                 1                     does not sum to one
rollout-mean              1 / (R n_rollout)     rollouts that are cut into several rows (SUPO, arXiv 2510.06727)
prompt-mean               1 / (P n_prompt)      every prompt counts the same
positive-token-mean       1 / N+ or 0           tokens of right rows only: VAPO's likelihood term (arXiv 2504.05118)
"""

from __future__ import annotations

import torch
from torch import Tensor

MODES = (
    "token-mean",
    "seq-mean-token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "token-sum",
    "rollout-mean",
    "prompt-mean",
    "positive-token-mean",
)


def token_weights(
    mode: str,
    token_counts: Tensor,
    *,
    rollouts: Tensor | None = None,
    prompts: Tensor | None = None,
    constant: float | None = None,
    positive: Tensor | None = None,
) -> Tensor:
    """Return the weight of one token of each row, float64 [S], given ``token_counts`` int64 [S] of the WHOLE step.

    ``rollouts`` and ``prompts`` int64 [S] name each row's rollout and prompt: any integers, but no two rollouts of
    the step share one. ``constant`` is L of seq-mean-token-sum-norm. ``positive`` bool [S] names the
    right rows of positive-token-mean. Rows without tokens count nowhere. Raises ValueError for an unknown mode or a
    missing argument.
    """
    counts = token_counts.to(torch.float64)
    rows = int((token_counts > 0).sum())
    if mode == "token-sum":
        return torch.ones_like(counts)
    if mode == "token-mean":
        return torch.full_like(counts, 1.0) / counts.sum().clamp(min=1)
    if mode == "seq-mean-token-mean":
        return 1.0 / (max(rows, 1) * counts.clamp(min=1))
    if mode == "seq-mean-token-sum":
        return torch.full_like(counts, 1.0 / max(rows, 1))
    if mode == "seq-mean-token-sum-norm":
        if constant is None or constant <= 0:
            raise ValueError(f"{mode} needs a positive constant length, got {constant}")
        return torch.full_like(counts, 1.0 / (max(rows, 1) * constant))
    if mode == "rollout-mean":
        return _by_label(mode, counts, rollouts)
    if mode == "prompt-mean":
        return _by_label(mode, counts, prompts)
    if mode == "positive-token-mean":
        if positive is None:
            raise ValueError(f"{mode} needs to know which rows are positive")
        return positive.to(torch.float64) / counts[positive].sum().clamp(min=1)
    raise ValueError(f"unknown reduction {mode!r}; choose from {', '.join(MODES)}")


def _by_label(mode: str, counts: Tensor, labels: Tensor | None) -> Tensor:
    """Every label with tokens weighs the same, and every token inside a label the same."""
    if labels is None:
        raise ValueError(f"{mode} needs the label of each row")
    _, index = torch.unique(labels, return_inverse=True)
    totals = torch.zeros(int(index.max()) + 1 if len(index) else 0, dtype=torch.float64).index_add(0, index, counts)
    living = int((totals > 0).sum())
    return 1.0 / (max(living, 1) * totals[index].clamp(min=1))
