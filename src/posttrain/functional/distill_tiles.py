"""Full-vocabulary divergences in tiles over tokens: only one tile's logits exist at a time, forward and backward.

[N, V] logits of student and teacher are the largest tensors of distillation (32k tokens x 150k entries x 4 bytes is
18 GiB each). Here each tile's logits are rebuilt from the last hidden states in the backward pass
(torch.utils.checkpoint), so memory is tile x V and the gradient is the same to rounding. Caching teacher hidden
states and its head instead of logits: DeepSeek-V4, arXiv 2606.19348.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Head = Callable[[Tensor], Tensor]
"""Hidden states [n, D] to logits [n, V]."""
Divergence = Callable[[Tensor, Tensor], Tensor]
"""Student and teacher logits [n, V] to one number per token, [n]."""


def in_tiles(compute: Callable[..., Tensor], *rows: Tensor, tile: int) -> Tensor:
    """Apply ``compute`` to ``tile`` rows of each tensor at a time and concatenate, [N].

    Nothing made inside a tile is kept for the backward pass: it is computed again. No rows give an empty result that
    still has a graph. Raises ValueError for a tile below 1 or tensors of different length.
    """
    lengths = {len(row) for row in rows}
    if tile < 1 or len(lengths) != 1:
        raise ValueError(f"tiles need tile >= 1 and tensors of one length, got {tile} and {sorted(lengths)}")
    starts = range(0, max(lengths.pop(), 1), tile)
    parts = [_tile(compute, [row[start : start + tile] for row in rows]) for start in starts]
    return torch.cat(parts)


def tiled_divergence(
    divergence: Divergence,
    student_hidden: Tensor,
    student_head: Head,
    teacher_hidden: Tensor,
    teacher_head: Head,
    *,
    tile: int = 256,
) -> Tensor:
    """``divergence`` of every token over the full vocabulary, [N], never holding more than ``tile`` tokens' logits.

    ``student_hidden`` [N, D], ``teacher_hidden`` [N, D'] are last hidden states at the trained tokens; heads map them
    to logits. The teacher's side carries no gradient. Use with distill.reverse_kl (DeepSeek-V4's objective, arXiv
    2606.19348 eq. 29), forward_kl or jsd.
    """

    def compute(student: Tensor, teacher: Tensor) -> Tensor:
        with torch.no_grad():
            target = teacher_head(teacher)
        return divergence(student_head(student), target)

    return in_tiles(compute, student_hidden, teacher_hidden.detach(), tile=tile)


def _tile(compute: Callable[..., Tensor], rows: list[Tensor]) -> Tensor:
    result = checkpoint(compute, *rows, use_reentrant=False)
    assert isinstance(result, Tensor)
    return result
