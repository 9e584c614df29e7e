"""How old a sample is, how many rollouts may still start, and the stand-in for a recomputed proximal policy.

All from AReaL, arXiv 2505.24298: staleness bound eta (section 5.1) and, in its code, the log-linear proximal.
"""

from __future__ import annotations

import torch
from torch import Tensor


def staleness(versions: Tensor, samples: Tensor, count: int, current: int) -> Tensor:
    """``current`` minus the oldest version among a row's tokens, int64 [count]; 0 for a row without tokens."""
    oldest = torch.full((count,), current, dtype=versions.dtype, device=versions.device)
    return current - oldest.scatter_reduce(0, samples, versions, "amin")


def free_slots(*, concurrent: int, running: int, accepted: int, bound: int, version: int, batch: int) -> int:
    """Rollouts that may start so that none is more than ``bound`` versions old when it trains; negative: none.

    min(concurrent - running, (bound + version + 1) batch - (accepted + running)); bound 0 is synchronous.
    """
    return min(max(1, concurrent) - running, (bound + version + 1) * max(1, batch) - (accepted + running))


def proximal(
    rollout_logprobs: Tensor, logprobs: Tensor, *, rollout_version: int, proximal_version: int, version: int
) -> Tensor:
    """Log-linear guess of the proximal policy's log-probabilities between rollout's and the current ones, detached.

    rollout + alpha (current - rollout), alpha = (proximal - rollout version) / (version - rollout version); saves a
    forward pass. With equal versions it is the rollout's.
    """
    gap = version - rollout_version
    alpha = (proximal_version - rollout_version) / gap if gap else 0.0
    return (rollout_logprobs + alpha * (logprobs - rollout_logprobs)).detach()
