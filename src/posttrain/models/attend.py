"""Attention that tells its log-sum-exp, so that two parts of one softmax can be computed apart and merged.

``attention`` gives ``softmax(s) v`` and ``log sum exp(s)`` for ``s = scaling q k^T`` (softcapped, masked); parts over
disjoint places merge by ``lerp(a, b, sigmoid(sum_b - sum_a))``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_FLASH: Any = getattr(getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None), "default", None)


@dataclass(frozen=True, slots=True)
class Options:
    """What a layer's attention asks for beside queries, keys and values."""

    scaling: float
    window: int | None = None
    """Sliding window: a token sees itself and the window - 1 tokens before it."""
    softcap: float | None = None
    """Scores become softcap x tanh(score / softcap)."""


def causal_attention(query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor:
    """Causal attention of equally long prompts, [n, heads, P, dim]."""
    length = query.shape[2]
    mask = None
    if options.window is not None and options.window < length:
        distance = torch.arange(length, device=query.device).unsqueeze(1) - torch.arange(length, device=query.device)
        mask = (distance >= 0) & (distance < options.window)
    if options.softcap is None:
        causal = {"attn_mask": mask} if mask is not None else {"is_causal": True}
        grouped = key.shape[1] != query.shape[1]
        return F.scaled_dot_product_attention(query, key, value, scale=options.scaling, enable_gqa=grouped, **causal)
    if mask is None:
        mask = torch.ones(length, length, dtype=torch.bool, device=query.device).tril_()
    per = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(per, dim=1), value.repeat_interleave(per, dim=1)
    return attention(query, key, value, hidden_bias(~mask, query.dtype), options)[0]


def attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, options: Options
) -> tuple[Tensor, Tensor]:
    """Attention of [n, heads, queries, dim] over [n, heads, places, dim], and the log-sum-exp of its scores."""
    if _FLASH is not None and options.softcap is None and query.device.type == "cpu" and key.shape == value.shape:
        out, total = _FLASH(query, key, value, 0.0, False, attn_mask=bias, scale=options.scaling)
        return out, total
    scores = (query @ key.transpose(-1, -2)).to(torch.promote_types(query.dtype, torch.float32)) * options.scaling
    if options.softcap is not None:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    if bias is not None:
        scores = scores + bias
    total = scores.logsumexp(-1)
    return (scores - total.unsqueeze(-1)).exp().to(value.dtype) @ value, total


def hidden_bias(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """Additive mask; finite, so that a row that sees nothing gives a weight of zero and not NaN."""
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, torch.finfo(dtype).min / 4)
