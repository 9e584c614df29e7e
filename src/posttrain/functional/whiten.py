"""Whitening over the whole batch: subtract the mean, divide by the standard deviation of every token that trains.

REINFORCE++ (arXiv 2501.03262) whitens token advantages, so a row weighs as much as it has tokens; by sequence, every
row weighs the same. Call it on all tokens of the optimizer batch, never on a micro-batch.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from posttrain.functional.masked import row_count, row_mean


def whiten(
    values: Tensor,
    samples: Tensor,
    count: int,
    *,
    by: Literal["token", "sequence"] = "token",
    ddof: int = 1,
    epsilon: float = 1e-8,
    centre: bool = True,
) -> Tensor:
    """(values - mean) / sqrt(variance + epsilon), [N]; exactly 0 when all values are equal.

    ``by`` says what is counted once: a token, or a row (its tokens share one unit of weight). ``centre=False`` keeps
    the mean and only scales. Variance has ``ddof`` degrees of freedom taken from the number of tokens or rows.
    """
    if len(values) < 2 or bool(values.max() == values.min()):
        return torch.zeros_like(values) if centre else values.clone()
    share = _shares(values, samples, count, by)
    units = len(values) if by == "token" else int((row_count(samples, count) > 0).sum())
    mean = (share * values).sum()
    spread = (share * (values - mean) ** 2).sum() * (units / max(units - ddof, 1))
    return (values - mean if centre else values) / torch.sqrt(spread + epsilon)


def _shares(values: Tensor, samples: Tensor, count: int, by: str) -> Tensor:
    """Each token's share of the mean; they sum to one."""
    if by == "token":
        return torch.full_like(values, 1.0 / len(values))
    lengths = row_count(samples, count)
    rows = int((lengths > 0).sum())
    return 1.0 / (rows * lengths[samples].to(values.dtype))


def rows_whitened(values: Tensor, samples: Tensor, count: int, **options: object) -> Tensor:
    """Whiten numbers [count] that each row gives to all its tokens; return [count] (REINFORCE++-baseline)."""
    spread = whiten(values[samples], samples, count, **options)  # type: ignore[arg-type]
    return row_mean(spread, samples, count)
