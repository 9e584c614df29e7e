"""Per-token policy losses [N]; reduce them with token weights.

PPO clip: arXiv 1707.06347 eq. 7; clip-higher: arXiv 2503.14476 eq. 10; dual clip: arXiv 1912.09729 eq. 5.
"""

from __future__ import annotations

import torch
from torch import Tensor


def clipped(
    ratio: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> Tensor:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A); with A < 0 at most -dual_clip x A. All [N]."""
    plain = ratio * advantages
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    loss = -torch.minimum(plain, bounded)
    if dual_clip is None:
        return loss
    return torch.where(advantages < 0, torch.minimum(loss, -dual_clip * advantages), loss)


def clip_sides(ratio: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """Where the clip is active, bool [N] each: low (A < 0 and r below) and high (A > 0 and r above)."""
    low = (advantages < 0) & (ratio < 1 - clip_low)
    high = (advantages > 0) & (ratio > 1 + clip_high)
    return low, high
