"""How likely a model's next token is to be drawn twice, log sum_v p(v)^2, tile by tile.

WPO (https://arxiv.org/abs/2406.11827, eq. 2) compares a token's probability with it: sampled alignment.
"""

from __future__ import annotations

import torch

from posttrain.functional.preference import log_collision
from posttrain.models.heads import TILE_BYTES, Head


@torch.no_grad()
def tiled_collision(
    hidden: torch.Tensor, head: Head, *, temperature: float = 1.0, tile_bytes: int = TILE_BYTES
) -> torch.Tensor:
    """Return log sum_v p(v)^2, [N], float32 or wider, at the states ``hidden`` [N, hidden size]; it has no gradient."""
    wide = torch.promote_types(hidden.dtype, torch.float32)
    if not len(hidden):
        return hidden.new_zeros(0, dtype=wide)
    vocabulary = head.module(hidden[:1]).shape[-1]
    tile = max(1, tile_bytes // (vocabulary * wide.itemsize))
    parts = [hidden[start : start + tile] for start in range(0, len(hidden), tile)]
    return torch.cat([log_collision(_logits(part, head, wide) / (temperature or 1.0)) for part in parts])


def _logits(hidden: torch.Tensor, head: Head, wide: torch.dtype) -> torch.Tensor:
    logits: torch.Tensor = head.module(hidden).to(wide) * head.scale
    return logits if head.softcap is None else torch.tanh(logits / head.softcap) * head.softcap
