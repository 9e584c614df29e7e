"""Importance ratios between two policies on the sampled tokens: exp of a clamped log-probability difference.

The clamp at +-20 keeps exp finite; it stops the gradient outside, so its share is worth watching.
GSPO's sequence ratio is the geometric mean over a row's sampled tokens: arXiv 2507.18071, section 4.1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.functional.masked import row_mean
from posttrain.functional.recursion import turn_spans

LIMIT = 20.0


def token_ratio(logprobs: Tensor, old_logprobs: Tensor, *, limit: float = LIMIT) -> Tensor:
    """exp(clamp(logprobs - old_logprobs)), [N]."""
    return (logprobs - old_logprobs).clamp(-limit, limit).exp()


def sequence_ratio(
    logprobs: Tensor, old_logprobs: Tensor, samples: Tensor, count: int, *, limit: float = LIMIT
) -> Tensor:
    """Geometric mean ratio of each row, [count]; exactly 1 for a row without tokens."""
    return row_mean(logprobs - old_logprobs, samples, count).clamp(-limit, limit).exp()


def turn_ratio(
    logprobs: Tensor, old_logprobs: Tensor, samples: Tensor, turns: Tensor, *, limit: float = LIMIT
) -> Tensor:
    """Geometric mean ratio of each token's turn, [N], the same inside a turn (Turn-PPO, arXiv 2512.17008)."""
    spans, rows = turn_spans(samples, turns)
    return sequence_ratio(logprobs, old_logprobs, spans, len(rows), limit=limit)[spans]


def straight_through_sequence_ratio(
    logprobs: Tensor, old_logprobs: Tensor, samples: Tensor, count: int, *, limit: float = LIMIT
) -> Tensor:
    """Per token: the row's ratio in value, the token's own log-probability in gradient, [N] (GSPO-token)."""
    row = sequence_ratio(logprobs, old_logprobs, samples, count, limit=limit).detach()
    return row[samples] * torch.exp(logprobs - logprobs.detach())
