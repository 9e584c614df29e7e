"""What to do with answers that ran into the length limit (DAPO, arXiv 2503.14476, section 3.4).

Soft punishment, with L_exp = limit - buffer: 0 up to L_exp, then falling to -1 at the limit, and -1 beyond. Masking
takes cut-off answers out of the loss, and with it the only pressure against length: combine it with the punishment.
Truncation is what the engine reported, never guessed from the last token; lengths count sampled tokens, or tools'
output would be punished.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def soft_punishment(lengths: Tensor, *, limit: int, buffer: int, factor: float = 1.0, capped: bool = True) -> Tensor:
    """Reward to add, [S], at most 0; ``capped`` holds it at -factor beyond ``limit``.

    Raises ValueError unless 0 < buffer <= limit.
    """
    if not 0 < buffer <= limit:
        raise ValueError(f"the overlong buffer must lie in (0, {limit}], got {buffer}")
    excess = (lengths.to(torch.float64) - (limit - buffer)) / buffer
    return -factor * excess.clamp(min=0.0, max=1.0 if capped else None)


def stop_properly(rewards: Tensor, truncated: Tensor, *, coefficient: float) -> Tensor:
    """Multiply a truncated answer's reward by ``coefficient``, [S]; a negative reward is not made better."""
    return torch.where(truncated, torch.minimum(rewards, coefficient * rewards), rewards)


def among(estimate: Callable[[Tensor], Tensor], rewards: Tensor, counted: Tensor) -> Tensor:
    """Advantages [G] of the ``counted`` bool [G] rollouts among themselves; 0 for the others.

    For masked truncated answers that shall not enter the group's statistics either. To keep them in the statistics
    (their reward is real), estimate over all and mask only the loss, with ``untrained``.
    """
    result = torch.zeros_like(rewards)
    result[counted] = estimate(rewards[counted])
    return result


def untrained(truncated: Tensor, token_counts: Tensor) -> Tensor:
    """Token counts [S] for the reduction once truncated rows are masked: 0 for them, so that they count nowhere."""
    return torch.where(truncated, torch.zeros_like(token_counts), token_counts)
