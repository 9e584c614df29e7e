"""The critic's loss and how well it explains the returns.

Value clip: PPO's released code (arXiv 1707.06347), half the larger of two squared errors. The clip is in units of
the reward: with rewards in hundreds, 0.2 freezes the critic.
"""

from __future__ import annotations

import torch
from torch import Tensor


def value_loss(
    values: Tensor, targets: Tensor, old_values: Tensor | None = None, *, clip: float | None = None
) -> Tensor:
    """Half the squared error to detached ``targets``, [N]; with ``clip``, the larger of it and the clipped one's.

    Raises ValueError if a clip comes without ``old_values``.
    """
    plain = (values - targets.detach()) ** 2
    if clip is None:
        return 0.5 * plain
    return 0.5 * torch.maximum(plain, _clipped_error(values, targets, old_values, clip))


def value_clip_active(values: Tensor, targets: Tensor, old_values: Tensor, *, clip: float) -> Tensor:
    """Where the clipped error is the larger one, so that the critic does not move, bool [N]."""
    return _clipped_error(values, targets, old_values, clip) > (values - targets) ** 2


def _clipped_error(values: Tensor, targets: Tensor, old_values: Tensor | None, clip: float) -> Tensor:
    if old_values is None:
        raise ValueError(f"value clip {clip} needs old_values, the critic's values when the update started")
    anchor = old_values.detach()
    return (anchor + (values - anchor).clamp(-clip, clip) - targets.detach()) ** 2


def explained_variance(values: Tensor, targets: Tensor) -> float:
    """1 - Var(targets - values) / Var(targets); 1 is perfect, 0 no better than a constant, NaN if nothing varies."""
    if len(targets) < 2 or bool(targets.max() == targets.min()):
        return float("nan")
    residual = (targets - values).detach().var(correction=0)
    return float(1 - residual / targets.detach().var(correction=0))
