"""Entropy of the next-token distribution from full logits: H = log sum exp z - sum p z.

dH/dz = -p (log p + H). The sampled token's -log p has the same mean but gradient 0 in expectation, so it is no
substitute in a bonus.
"""

from __future__ import annotations

import torch
from torch import Tensor


def entropy(logits: Tensor) -> Tensor:
    """Entropy in nats over the last dimension, [...]; tokens ruled out with -inf count for nothing."""
    finite = logits.masked_fill(logits == -torch.inf, 0.0)
    return logits.logsumexp(-1) - (logits.softmax(-1) * finite).sum(-1)
