"""Reads and writes segments of a row, so that many short attentions become one batched product.

Segments of equal length at equal distances are a strided view of the row and cost nothing; others are gathered, the
shorter ones filled up on the right with copies of their last token, which causal attention never shows to a real one.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

Segment = tuple[int, int]
"""(start, length) in tokens of the row."""


class Segments:
    """Some segments of a row as one batch [count, heads, length, size]."""

    def __init__(self, segments: Sequence[Segment], device: torch.device | str) -> None:
        """Find out whether a view will do, or build the gather indices."""
        starts = [start for start, _ in segments]
        steps = {later - earlier for earlier, later in itertools.pairwise(starts)}
        self.count = len(segments)
        self.length = max(length for _, length in segments)
        self.start, self.step = starts[0], min(steps, default=0)
        self.equal = all(length == self.length for _, length in segments)
        self.view = self.equal and len(steps) <= 1
        if self.view:
            return
        offsets = torch.arange(self.length)
        lengths = torch.tensor([length for _, length in segments])[:, None]
        real = (offsets < lengths).flatten()
        index = (torch.tensor(starts)[:, None] + torch.minimum(offsets, lengths - 1)).flatten()
        self.index = index.to(device)
        self.real = real.nonzero().flatten().to(device)
        self.padding = (~real).nonzero().flatten().to(device)
        self.places = index[real].to(device)

    def read(self, row: torch.Tensor) -> torch.Tensor:
        """Return the segments of [tokens, heads, size] as [count, heads, length, size]."""
        if self.view:
            return self._view(row)
        return self._batch(row.index_select(0, self.index))

    def read_gradient(self, row: torch.Tensor) -> torch.Tensor:
        """Like `read`, with zeros at the filled-up places, so that nothing flows back through them."""
        if self.view:
            return self._view(row)
        found = row.index_select(0, self.index)
        if not self.equal:
            found.index_fill_(0, self.padding, 0.0)
        return self._batch(found)

    def write(self, row: torch.Tensor, batch: torch.Tensor) -> None:
        """Put [count, heads, length, size] at the segments' places of [tokens, heads, size]."""
        if self.view:
            self._view(row).copy_(batch)
            return
        flat = batch.transpose(1, 2).reshape(-1, *row.shape[1:])
        row.index_copy_(0, self.places, flat if self.equal else flat.index_select(0, self.real))

    def add(self, row: torch.Tensor, batch: torch.Tensor) -> None:
        """Add [count, heads, length, size] to [tokens, heads, size]; for segments of equal length."""
        if self.view:
            self._view(row).add_(batch)
        else:
            row.index_add_(0, self.places, batch.transpose(1, 2).reshape(-1, *row.shape[1:]))

    def _view(self, row: torch.Tensor) -> torch.Tensor:
        heads, size = row.shape[1:]
        token, head, one = row.stride()
        return row.as_strided(
            (self.count, heads, self.length, size),
            (self.step * token, head, token, one),
            row.storage_offset() + self.start * token,
        )

    def _batch(self, found: torch.Tensor) -> torch.Tensor:
        return found.view(self.count, self.length, *found.shape[1:]).transpose(1, 2)


def bucket_segments(segments: Sequence[Segment], device: torch.device | str) -> list[Segments]:
    """Group non-empty segments of about equal length: at most a quarter, or 8 tokens, is filled up."""
    buckets: list[list[Segment]] = []
    for segment in sorted((s for s in segments if s[1]), key=lambda s: (-s[1], s[0])):
        longest = buckets[-1][0][1] if buckets else 0
        if buckets and (longest <= 1.25 * segment[1] or longest - segment[1] <= 8):
            buckets[-1].append(segment)
        else:
            buckets.append([segment])
    return [Segments(bucket, device) for bucket in buckets]
