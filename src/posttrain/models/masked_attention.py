"""The portable route of the plan's attention: masked SDPA per block, never wider than prefix plus branch.

Used where the log-sum-exp kernel is missing (other devices, odd head sizes) and where a sliding window bites.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional as F

from posttrain.models.segments import Segment, Segments, bucket_segments
from posttrain.types import Block


def causal_mask(
    tokens: int, prefix: int, *, window: int | None = None, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Return bool [tokens, prefix + tokens]: query i stands at position prefix + i and sees keys up to itself.

    With a window, only the last ``window`` of them (its own included).
    """
    distance = torch.arange(prefix, prefix + tokens, device=device)[:, None] - torch.arange(
        prefix + tokens, device=device
    )
    mask = distance >= 0
    return mask if window is None else mask & (distance < window)


def attend_masked(
    blocks: Sequence[Block],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float,
    *,
    window: int | None,
    device: torch.device | str,
) -> torch.Tensor:
    """Return [1, tokens, heads, size] for one row [1, heads, tokens, size], through autograd."""
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    outs, places = [], []
    for block in blocks:
        prefix = slice(block.prefix_start, block.prefix_start + block.prefix_length)
        jobs: list[tuple[slice, Sequence[Segment]]] = [(prefix, block.branches)]
        if block.prefix_length:
            jobs.append((slice(0, 0), [(block.prefix_start, block.prefix_length)]))
        for seen, segments in jobs:
            for part in bucket_segments(segments, device):
                out, where = _attend(part, q, k, v, seen, scaling, window)
                outs.append(out)
                places.append(where)
    return torch.cat(outs)[torch.cat(places).argsort()].unsqueeze(0)


def _attend(
    part: Segments,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    seen: slice,
    scaling: float,
    window: int | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the outputs [tokens, heads, size] of the segments and their places in the row."""
    places, real = _places(part, q.device)
    queries, keys, values = (x[places].view(part.count, part.length, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
    before_k, before_v = (x[seen].transpose(0, 1).expand(part.count, -1, -1, -1) for x in (k, v))
    mask = causal_mask(part.length, before_k.shape[2], window=window, device=q.device)
    out = F.scaled_dot_product_attention(
        queries,
        torch.cat([before_k, keys], 2),
        torch.cat([before_v, values], 2),
        attn_mask=mask,
        scale=scaling,
        enable_gqa=queries.shape[1] != keys.shape[1],
    )
    return out.transpose(1, 2).flatten(0, 1)[real], places[real]


def _places(part: Segments, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return row places [count * length] of the batch and which of them are real."""
    if not part.view:
        return part.index, part.real
    starts = part.start + part.step * torch.arange(part.count, device=device)
    places = (starts[:, None] + torch.arange(part.length, device=device)).flatten()
    return places, torch.arange(len(places), device=device)
