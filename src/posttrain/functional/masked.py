"""Select trained tokens and sum them by row; a masked place is never read, so it may hold NaN.

Rows are numbered by an int64 index tensor; a row without tokens has sum 0 and is not counted as a row.
"""

from __future__ import annotations

import torch
from torch import Tensor


def flatten(mask: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
    """Return (samples [N], values [N]...) of the places where ``mask`` bool [B, T] is true, row by row."""
    rows = torch.nonzero(mask)[:, 0]
    return (rows, *(value[mask] for value in values))


def row_sum(values: Tensor, rows: Tensor, count: int) -> Tensor:
    """Sum ``values`` [N] by row index ``rows`` [N]; return [count]."""
    return values.new_zeros(count).index_add(0, rows, values)


def row_count(rows: Tensor, count: int) -> Tensor:
    """Number of tokens of each row, int64 [count]."""
    return torch.bincount(rows, minlength=count)


def row_mean(values: Tensor, rows: Tensor, count: int) -> Tensor:
    """Mean by row, [count]; 0 for a row without tokens."""
    return row_sum(values, rows, count) / row_count(rows, count).clamp(min=1).to(values.dtype)
