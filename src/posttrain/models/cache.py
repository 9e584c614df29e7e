"""Keys and values of rows that are decoded together: prompts stored once per group, completions beside them.

A row attends to its prompt (one product per group: all rows of the group are queries against the group's keys) and to
its own tokens; the two softmaxes are merged by their log-sum-exp,
``out = lerp(own, prompt, sigmoid(lse_prompt - lse_own))``, which is the softmax over both, exactly.

Every live row writes its key and value of a step into the same column of a preallocated store, so a write is a slice
copy; a row that came later masks the columns before its start. Prompts lie in slabs by length class, padded, masked.
The store reaches a transformers model through the attention interface under the name ``posttrain_cache``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from posttrain.errors import ModelError
from posttrain.models.attend import Options, attention, causal_attention, hidden_bias

ATTENTION_NAME = "posttrain_cache"
"""Name under which transformers finds the attention function of this file."""

Pair = tuple[Tensor, Tensor]
"""Keys and values."""


@dataclass(eq=False, slots=True)
class Prefix:
    """A prompt whose keys and values are stored, for all rows that continue it."""

    ids: tuple[int, ...]
    """The prompt."""
    logits: Tensor | None = None
    """[V]: what the model says after the last prompt token."""
    place: Any = None
    """Where it lies: slab and index, or a cache of its own."""


@dataclass(eq=False, slots=True)
class _Slab:
    """Prompts of one length class: per layer [groups, kv heads, capacity, dim]."""

    capacity: int
    lengths: list[int] = field(default_factory=list)
    layers: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def take(self, length: int) -> int:
        """Reserve a place."""
        if 0 in self.lengths:
            index = self.lengths.index(0)
            self.lengths[index] = length
            return index
        self.lengths.append(length)
        return len(self.lengths) - 1


@dataclass(frozen=True, slots=True, eq=False)
class _View:
    """How the rows of a step lie over one slab: ``rows`` is [groups x width] slots, group after group."""

    slab: _Slab
    groups: int
    width: int
    rows: Tensor | None
    slots: Tensor
    span: int


def length_class(length: int) -> int:
    """Smallest of 16, 24, 32, 48, 64, 96, … that holds the length."""
    size = 16
    while size < length:
        size *= 2
    return size * 3 // 4 if size > 16 and length <= size * 3 // 4 else size


class Store:
    """All keys and values of the prompts and rows that live now.

    A *slot* is a row's place. Use: ``place_prefixes`` and a forward pass over the packed prompts, ``add_row`` for
    each row, then per token ``begin_step``, a forward pass over all slots, ``end_step``.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything and free the memory."""
        self.slots: list[Prefix | None] = []
        self._slabs: dict[int, _Slab] = {}
        self._own: dict[int, tuple[Tensor, Tensor]] = {}
        self._starts: list[int] = []
        self._column = 0
        self._capacity = 0
        self._packed: list[tuple[Prefix, int]] = []
        self.decoding = False
        self._views: list[_View] | None = None
        self._inverse: Tensor | None = None
        self._biases: dict[Any, Tensor | None] = {}
        self._low = 0
        self.touched: set[int] = set()

    # prompts

    def place_prefixes(self, prefixes: Sequence[Prefix]) -> None:
        """Reserve places; the next forward pass is over these prompts, packed into one row in this order."""
        start = 0
        self._packed = []
        for prefix in prefixes:
            slab = self._slabs.setdefault(length_class(len(prefix.ids)), _Slab(length_class(len(prefix.ids))))
            prefix.place = (slab, slab.take(len(prefix.ids)))
            self._packed.append((prefix, start))
            start += len(prefix.ids)
        self.decoding, self.touched = False, set()

    def release(self, prefix: Prefix) -> None:
        """Free a prompt that no row continues any more."""
        slab, index = prefix.place
        slab.lengths[index] = 0
        while slab.lengths and slab.lengths[-1] == 0:
            slab.lengths.pop()
        if not slab.lengths:
            self._slabs.pop(slab.capacity, None)
        self._views = None

    def attend_prompts(self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor:
        """Causal attention inside each packed prompt; [T, heads, dim] in and out. Keeps keys and values."""
        self.touched.add(layer)
        pieces, index = [], 0
        while index < len(self._packed):
            count = self._equal_run(index)
            start, length = self._packed[index][1], len(self._packed[index][0].ids)
            stop = start + count * length
            q, k, v = (x[start:stop].reshape(count, length, *x.shape[1:]).transpose(1, 2) for x in (query, key, value))
            for offset in range(count):
                self._keep_prompt(layer, self._packed[index + offset][0], k[offset], v[offset])
            pieces.append(causal_attention(q, k, v, options).transpose(1, 2).flatten(0, 1))
            index += count
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def _equal_run(self, index: int) -> int:
        """How many packed prompts from here on have the same length."""
        length = len(self._packed[index][0].ids)
        count = 1
        while index + count < len(self._packed) and len(self._packed[index + count][0].ids) == length:
            count += 1
        return count

    def _keep_prompt(self, layer: int, prefix: Prefix, key: Tensor, value: Tensor) -> None:
        slab, index = prefix.place
        kept = slab.layers.get(layer)
        if kept is None or len(kept[0]) <= index:
            groups = max(len(slab.lengths), 0 if kept is None else 2 * len(kept[0]))
            kept = _grown(kept, (groups, key.shape[0], slab.capacity), (key, value))
            slab.layers[layer] = kept
        kept[0][index, :, : key.shape[1]] = key
        kept[1][index, :, : value.shape[1]] = value

    # rows

    def add_row(self, prefix: Prefix) -> int:
        """Give a row that continues the prefix a slot: a dead one if there is one, else a new one."""
        self._views = None
        if None in self.slots:
            slot = self.slots.index(None)
            self.slots[slot], self._starts[slot] = prefix, self._column
            return slot
        self.slots.append(prefix)
        self._starts.append(self._column)
        return len(self.slots) - 1

    def retire(self, slot: int) -> None:
        """End a row; its slot stays, dead, until it is reused or compacted away."""
        self.slots[slot] = None
        self._views = None

    def compact(self) -> list[int]:
        """Move the live rows together; return the old slot of each new one."""
        order = [slot for slot, prefix in enumerate(self.slots) if prefix is not None]
        kept = slice(self._low, self._column)
        for keys, values in self._own.values():
            written = torch.tensor([slot for slot in order if slot < len(keys)], device=keys.device)
            for whole in (keys, values):
                whole[: len(written), :, kept] = whole[:, :, kept].index_select(0, written)
        self.slots = [self.slots[slot] for slot in order]
        self._starts = [self._starts[slot] for slot in order]
        self._views = None
        return order

    def begin_step(self, columns: int) -> None:
        """Make room for one more token of every row; ``columns`` is how many are expected at most."""
        live = [start for start, prefix in zip(self._starts, self.slots, strict=True) if prefix is not None]
        self._low = min(live)
        if self._column == self._capacity:
            self._make_room(columns)
        if self._views is None:
            self._arrange()
        self._biases = {}
        self.decoding, self.touched = True, set()

    def end_step(self) -> None:
        """The column is written."""
        self._column += 1

    def _make_room(self, columns: int) -> None:
        """Shift dead columns out if they are half of all, else double the capacity."""
        span = self._column - self._low
        if self._low == 0 or span > self._capacity // 2:
            self._capacity = max(2 * span, span + min(max(columns, 1), 256))
        for layer, (keys, values) in self._own.items():
            kept = slice(self._low, self._column)
            shape = (len(keys), keys.shape[1], self._capacity)
            self._own[layer] = _grown((keys[:, :, kept], values[:, :, kept]), shape, (keys, values))
        self._starts = [max(start - self._low, 0) for start in self._starts]
        self._column, self._low = span, 0

    def _own_layer(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        kept = self._own.get(layer)
        if kept is None or len(kept[0]) < len(self.slots):
            rows = max(len(self.slots), 0 if kept is None else len(kept[0]) * 3 // 2)
            kept = _grown(kept, (rows, key.shape[1], self._capacity), (key, value))
            self._own[layer] = kept
        return kept

    def attend_rows(self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor:
        """One new token per slot: [S, heads, dim] in and out; attends to the row's prompt and its own tokens."""
        self.touched.add(layer)
        keys, values = self._own_layer(layer, key, value)
        rows, heads, dim = query.shape
        keys[:rows, :, self._column] = key
        values[:rows, :, self._column] = value
        span = slice(self._low, self._column + 1)
        query = query.reshape(rows, key.shape[1], heads // key.shape[1], dim)
        own, own_sum = attention(
            query, keys[:rows, :, span], values[:rows, :, span], self._own_bias(query, options), options
        )
        prompt, prompt_sum = self._attend_prefixes(layer, query, options)
        weight = torch.sigmoid(prompt_sum - own_sum).unsqueeze(-1).to(own.dtype)
        return torch.lerp(own, prompt, weight).reshape(rows, heads, -1)

    def _own_bias(self, query: Tensor, options: Options) -> Tensor | None:
        """[S, 1, 1, span]: the columns before a row's start, and those behind a sliding window, are masked."""
        window = options.window if options.window and options.window <= self._column - self._low else None
        key = ("own", window)
        if key not in self._biases:
            starts = [s if p is not None else self._column for s, p in zip(self._starts, self.slots, strict=True)]
            if window is not None:
                starts = [max(start, self._column - window + 1) for start in starts]
            bias = None
            if max(starts) > self._low:
                columns = torch.arange(self._low, self._column + 1, device=query.device)
                hidden = columns < torch.tensor(starts, device=query.device).unsqueeze(1)
                bias = hidden_bias(hidden[:, None, None], query.dtype)
            self._biases[key] = bias
        return self._biases[key]

    # prompts seen from rows

    def _arrange(self) -> None:
        """Work out which slots stand over which slab, after any change of membership."""
        members: dict[int, list[list[int]]] = {size: [[] for _ in s.lengths] for size, s in self._slabs.items()}
        for slot, prefix in enumerate(self.slots):
            if prefix is not None:
                members[prefix.place[0].capacity][prefix.place[1]].append(slot)
        self._views, places = [], [0] * len(self.slots)
        offset = 0
        for size, groups in members.items():
            width = max(map(len, groups))
            if width:
                view = _view(self._slabs[size], groups, width, len(self.slots))
                for index, group in enumerate(groups):
                    for rank, slot in enumerate(group):
                        places[slot] = offset + index * width + rank
                offset += len(groups) * width
                self._views.append(view)
        identity = offset == len(places) and places == list(range(offset))
        self._inverse = None if identity else torch.tensor(places)

    def _attend_prefixes(self, layer: int, query: Tensor, options: Options) -> tuple[Tensor, Tensor]:
        """Attention of every slot to its prompt, [S, kv heads, per kv, dim], and its log-sum-exp."""
        assert self._views is not None
        parts = [self._attend_slab(layer, query, view, options) for view in self._views]
        out = parts[0][0] if len(parts) == 1 else torch.cat([part[0] for part in parts])
        total = parts[0][1] if len(parts) == 1 else torch.cat([part[1] for part in parts])
        if self._inverse is None:
            return out, total
        self._inverse = self._inverse.to(query.device)
        return out.index_select(0, self._inverse), total.index_select(0, self._inverse)

    def _attend_slab(self, layer: int, query: Tensor, view: _View, options: Options) -> tuple[Tensor, Tensor]:
        keys, values = (x[: view.groups, :, : view.span] for x in view.slab.layers[layer])
        if view.rows is not None:
            query = query.index_select(0, view.rows.to(query.device))
        _, heads, per, dim = query.shape
        if view.width > 1:
            query = query.view(view.groups, view.width, heads, per, dim).transpose(1, 2)
            query = query.reshape(view.groups, heads, view.width * per, dim)
        out, total = attention(query, keys, values, self._prompt_bias(query, view, options), options)
        if view.width > 1:
            out = out.reshape(view.groups, heads, view.width, per, -1).transpose(1, 2).flatten(0, 1)
            total = total.reshape(view.groups, heads, view.width, per).transpose(1, 2).flatten(0, 1)
        return out, total

    def _prompt_bias(self, query: Tensor, view: _View, options: Options) -> Tensor | None:
        """[groups, 1, 1 or queries, span]: padding of shorter prompts, and what lies behind a sliding window."""
        longest = view.span + self._column - self._low + 1
        window = options.window if options.window and options.window < longest else None
        key = (view.slab.capacity, window)
        if key not in self._biases:
            lengths = torch.tensor(view.slab.lengths, device=query.device)[:, None, None]
            places = torch.arange(view.span, device=query.device)
            hidden = places >= lengths
            if window is not None:
                ages = torch.tensor([self._column - start for start in self._starts], device=query.device)
                ages = ages[view.slots.to(query.device)].view(view.groups, view.width, 1)
                queries = (lengths + ages).repeat_interleave(query.shape[2] // view.width, dim=1)
                hidden = hidden | (queries - places >= window)
            masked = window is not None or min(view.slab.lengths) < view.span
            self._biases[key] = hidden_bias(hidden[:, None], query.dtype) if masked else None
        return self._biases[key]


def _view(slab: _Slab, groups: list[list[int]], width: int, slots: int) -> _View:
    flat = [slot for group in groups for slot in [*group, *[0] * (width - len(group))]]
    rows = torch.tensor(flat)
    return _View(
        slab=slab,
        groups=len(groups),
        width=width,
        rows=None if flat == list(range(slots)) else rows,
        slots=rows,
        span=max(slab.lengths),
    )


def _grown(kept: Pair | None, shape: tuple[int, int, int], like: Pair) -> Pair:
    """Keys and values [rows, kv heads, places, dim], the kept ones copied in, else zero (garbage could be NaN)."""
    fresh = tuple(part.new_zeros(*shape, part.shape[-1]) for part in like)
    for new, old in zip(fresh, kept or (), strict=False):
        new[: len(old), :, : old.shape[2]] = old
    return fresh[0], fresh[1]


def _interface(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    posttrain_store: Store,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """What transformers calls: [B, heads, T, dim] in, [B, T, heads, dim] out."""
    if s_aux is not None:
        raise ModelError("attention sinks have no place in the shared cache")
    options = Options(
        scaling=query.shape[-1] ** -0.5 if scaling is None else scaling, window=sliding_window, softcap=softcap
    )
    layer: Any = module.layer_idx
    if posttrain_store.decoding:
        q, k, v = query[:, :, 0], key[:, :, 0], value[:, :, 0]
        return posttrain_store.attend_rows(layer, q, k, v, options).unsqueeze(1), None
    q, k, v = (part[0].transpose(0, 1) for part in (query, key, value))
    return posttrain_store.attend_prompts(layer, q, k, v, options).unsqueeze(0), None


AttentionInterface.register(ATTENTION_NAME, _interface)
AttentionMaskInterface.register(ATTENTION_NAME, lambda *_, **__: None)
