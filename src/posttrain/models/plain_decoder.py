"""Decoding for models that the shared cache cannot serve: transformers caches per prompt, or no cache at all.

Rows of one prompt that entered together form a batch of equal length, so no padding and no mask is needed, and any
kind of state (linear attention, convolutions) is right. This is the one place that knows how transformers names caches.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from posttrain.errors import ModelError
from posttrain.models.cache import Prefix

Switch = Callable[[], AbstractContextManager[None]]
"""Makes a context in which the model is set up for generation."""

_CACHE_NAMES = ("cache", "past_key_values", "cache_params")


class _Slots:
    """Rows by slot; dead slots stay until they are compacted away."""

    def __init__(self, model: Any, attention: Switch, evaluation: Switch) -> None:
        self._model = model
        self._attention = attention
        self._evaluation = evaluation
        self.slots: list[Any] = []

    def _logits(self, ids: Tensor, **options: Any) -> Tensor:
        """Logits [B, V] after the last token of ids [B, T]."""
        with self._attention(), self._evaluation():
            logits: Tensor = self._model(input_ids=ids, **options).logits
        return logits[:, -1]

    def retire(self, slot: int) -> None:
        """End a row."""
        self.slots[slot] = None

    def compact(self) -> list[int]:
        """Drop dead slots."""
        order = [slot for slot, row in enumerate(self.slots) if row is not None]
        self.slots = [self.slots[slot] for slot in order]
        return order

    def _take(self, row: Any) -> int:
        if None in self.slots:
            slot = self.slots.index(None)
            self.slots[slot] = row
            return slot
        self.slots.append(row)
        return len(self.slots) - 1

    def release(self, prefix: Prefix) -> None:
        """Forget a prefix."""
        prefix.place = None

    def refresh(self) -> None:
        """Nothing is kept of the weights."""

    def clear(self) -> None:
        """Forget everything."""
        self.slots = []


@dataclass(eq=False, slots=True)
class _Batch:
    """Rows that share a cache object: same prompt, same age."""

    cache: Any
    rows: list[_CachedRow]


@dataclass(eq=False, slots=True)
class _CachedRow:
    prefix: Prefix
    batch: _Batch | None = None


class PlainDecoder(_Slots):
    """Transformers' own cache, one batch per prompt and time of entry."""

    def __init__(self, model: Any, attention: Switch, evaluation: Switch) -> None:
        super().__init__(model, attention, evaluation)
        names = inspect.signature(model.forward).parameters
        found = [name for name in _CACHE_NAMES if name in names]
        if not found:
            raise ModelError(f"{type(model).__name__}.forward takes no cache")
        self._cache_name = found[0]

    def prefill(self, prompts: Sequence[tuple[int, ...]]) -> list[Prefix]:
        """Compute each prompt by itself."""
        return [self._prefill(tuple(ids)) for ids in prompts]

    def _prefill(self, ids: tuple[int, ...]) -> Prefix:
        cache = DynamicCache(config=self._model.config)
        logits = self._step(torch.tensor([ids], device=self._model.device), cache)
        return Prefix(ids=ids, logits=logits[0], place=cache)

    def _step(self, ids: Tensor, cache: Any) -> Tensor:
        return self._logits(ids, use_cache=True, **{self._cache_name: cache})

    def add_row(self, prefix: Prefix) -> int:
        """Open a row; its batch is made when it is first decoded."""
        return self._take(_CachedRow(prefix))

    def decode(self, ids: Tensor, positions: Tensor, columns: int) -> Tensor:
        """Feed one token per slot, batch by batch."""
        self._open_batches()
        logits: Tensor | None = None
        slot_of = {id(row): slot for slot, row in enumerate(self.slots) if row is not None}
        for batch in {id(row.batch): row.batch for row in self.slots if row is not None}.values():
            _drop_ended(batch, slot_of, ids.device)
            slots = torch.tensor([slot_of[id(row)] for row in batch.rows], device=ids.device)
            heard = self._step(ids[slots].unsqueeze(1), batch.cache)
            logits = heard.new_zeros(len(self.slots), heard.shape[-1]) if logits is None else logits
            logits[slots] = heard
        assert logits is not None
        return logits

    def _open_batches(self) -> None:
        """Rows that have just entered: those of the same prompt become one batch over copies of its cache."""
        fresh: dict[int, list[_CachedRow]] = {}
        for row in self.slots:
            if row is not None and row.batch is None:
                fresh.setdefault(id(row.prefix), []).append(row)
        for rows in fresh.values():
            cache = copy.deepcopy(rows[0].prefix.place)
            cache.reorder_cache(torch.zeros(len(rows), dtype=torch.int64, device=self._model.device))
            batch = _Batch(cache, rows)
            for row in rows:
                row.batch = batch


def _drop_ended(batch: _Batch, slot_of: dict[int, int], device: torch.device) -> None:
    kept = [index for index, row in enumerate(batch.rows) if id(row) in slot_of]
    if len(kept) < len(batch.rows):
        batch.cache.reorder_cache(torch.tensor(kept, device=device))
        batch.rows = [batch.rows[index] for index in kept]


class RecomputeDecoder(_Slots):
    """No cache: every token costs a forward pass over its whole row. Right for any causal model."""

    def prefill(self, prompts: Sequence[tuple[int, ...]]) -> list[Prefix]:
        """Compute each prompt by itself."""
        return [Prefix(ids=tuple(ids), logits=self._whole(list(ids))) for ids in prompts]

    def _whole(self, ids: list[int]) -> Tensor:
        return self._logits(torch.tensor([ids], device=self._model.device), use_cache=False)[0]

    def add_row(self, prefix: Prefix) -> int:
        """Open a row."""
        return self._take(list(prefix.ids))

    def decode(self, ids: Tensor, positions: Tensor, columns: int) -> Tensor:
        """Append one token per slot and compute the rows again."""
        heard: dict[int, Tensor] = {}
        for slot, (row, token) in enumerate(zip(self.slots, ids.tolist(), strict=True)):
            if row is not None:
                row.append(token)
                heard[slot] = self._whole(row)
        logits = next(iter(heard.values())).new_zeros(len(self.slots), len(next(iter(heard.values()))))
        for slot, row_logits in heard.items():
            logits[slot] = row_logits
        return logits
