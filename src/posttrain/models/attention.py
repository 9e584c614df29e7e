"""Registers the attention function "posttrain": packed rows and shared prompts without a tokens x tokens mask.

A row is a list of blocks; each has a prefix and branches that see the prefix and themselves. Every prefix and every
branch attends causally to itself (segments of about equal length in one batched product); then all branches of a
block attend to their prefix as ONE product without mask. Two attentions over disjoint keys merge exactly:

    out = sum_i exp(lse_i - lse) out_i,    lse = log sum_i exp(lse_i),

and the backward of each part is the plain one with the merged ``out`` and ``lse`` (FlashAttention-2, arXiv
2307.08691, section 3.1: only these enter P = exp(S - lse) and D = rowsum(dO * out)). Where the kernel that returns
the log-sum-exp is missing, or a sliding window bites, `posttrain.models.masked_attention` does it with masked SDPA.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.nn import functional as F
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from posttrain.models.masked_attention import attend_masked, causal_mask
from posttrain.models.segments import Segment, Segments, bucket_segments
from posttrain.types import Block

NAME = "posttrain"
"""Name of the attention implementation in transformers."""

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class UnsupportedAttention(Exception):
    """This model's attention is more than a scaled causal product; the caller falls back to the model's own."""


class AttentionPlan(Protocol):
    """What the model keyword ``attention_plan`` must offer."""

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        *,
        window: int | None = None,
    ) -> torch.Tensor:
        """Return the attention output [batch, tokens, heads, value size] for [batch, heads, tokens, size] inputs."""
        ...


class BlockPlan:
    """Attention of one packed row, worked out once per microbatch and used by every layer."""

    def __init__(self, blocks: Sequence[Block], *, device: torch.device | str = "cpu") -> None:
        """Sort the row's segments; blocks must cover the row without gap or overlap."""
        self.device = device
        self.blocks = _merge_unshared(blocks)
        prefixes = [(b.prefix_start, b.prefix_length) for b in self.blocks if b.prefix_length]
        branches = [branch for block in self.blocks for branch in block.branches]
        self.width = _check_cover(prefixes + branches)
        self.longest = max(
            (b.prefix_length + size for b in self.blocks for _, size in (*b.branches, (0, 0))), default=0
        )
        self.causal = bucket_segments(prefixes + branches, device)
        self.crosses = _pair_crosses(self.blocks, device)

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        *,
        window: int | None = None,
    ) -> torch.Tensor:
        """Return [1, width, heads, size]; each token sees its prefix and its own segment up to itself."""
        if query.shape[0] != 1 or query.shape[2] != self.width:
            raise ValueError(f"plan covers 1 row of {self.width} tokens, got {tuple(query.shape)}")
        bites = window is not None and window < self.longest
        if not bites and query.shape[-1] == value.shape[-1] and kernel_available(query.device.type):
            apply: Callable[..., torch.Tensor] = _BlockAttention.apply
            return apply(query, key, value, self, scaling)
        return attend_masked(
            self.blocks, query, key, value, scaling, window=window if bites else None, device=self.device
        )


class _BlockAttention(torch.autograd.Function):
    """Attention over a plan's segments; saves only its inputs, its output and one log-sum-exp per token and head."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, plan: BlockPlan, scaling: float
    ) -> torch.Tensor:
        q, k, v = (_rows(x) for x in (query, key, value))
        out = q.new_empty(q.shape)
        lse = q.new_empty((*q.shape[:2], 1), dtype=torch.float64 if q.dtype == torch.float64 else torch.float32)
        for part in plan.causal:
            own, own_lse = _flash(part.read(q), part.read(k), part.read(v), 0.0, True, scale=scaling)
            part.write(out, own)
            part.write(lse, own_lse.unsqueeze(-1))
        for prefix, span in plan.crosses:
            seen, seen_lse = _flash(span.read(q), prefix.read(k), prefix.read(v), 0.0, False, scale=scaling)
            own_lse, seen_lse = span.read(lse), seen_lse.unsqueeze(-1)
            share = torch.sigmoid(seen_lse - own_lse).to(out.dtype)
            span.write(out, torch.lerp(span.read(out), seen, share))
            span.write(lse, torch.logaddexp(own_lse, seen_lse))
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.plan, ctx.scaling = plan, scaling
        return out.unsqueeze(0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, out, lse = ctx.saved_tensors
        q, k, v, g = _rows(query), _rows(key), _rows(value), grad[0]
        grads = [x.new_empty(x.shape) for x in (q, k, v)]
        for part in ctx.plan.causal:
            found = _flash_backward(
                *(part.read_gradient(g), part.read(q), part.read(k), part.read(v), part.read(out)),
                *(part.read(lse).squeeze(-1), 0.0, True),
                scale=ctx.scaling,
            )
            for target, own in zip(grads, found, strict=True):
                part.write(target, own)
        for prefix, span in ctx.plan.crosses:
            found = _flash_backward(
                *(span.read(g), span.read(q), prefix.read(k), prefix.read(v), span.read(out)),
                *(span.read(lse).squeeze(-1), 0.0, False),
                scale=ctx.scaling,
            )
            for target, place, seen in zip(grads, (span, prefix, prefix), found, strict=True):
                place.add(target, seen)
        return (*(_one(x) for x in grads), None, None)


def _rows(x: torch.Tensor) -> torch.Tensor:
    """View [1, heads, tokens, size] as [tokens, heads, size]."""
    return x[0].transpose(0, 1)


def _one(x: torch.Tensor) -> torch.Tensor:
    """View [tokens, heads, size] as [1, heads, tokens, size]."""
    return x.transpose(0, 1).unsqueeze(0)


def _span(branches: Sequence[Segment]) -> Segment:
    """Return the range of tokens that the branches fill; they lie behind each other."""
    start = branches[0][0]
    length = sum(size for _, size in branches)
    if sum(branches[-1]) != start + length:
        raise ValueError(f"branches of one block must lie behind each other, got {branches}")
    return start, length


def _pair_crosses(blocks: Sequence[Block], device: torch.device | str) -> list[tuple[Segments, Segments]]:
    """Return (prefixes, the spans of their branches); blocks of equal shape go together in one batched product."""
    shapes: dict[tuple[int, int], list[tuple[Segment, Segment]]] = {}
    for block in blocks:
        if block.prefix_length and block.branches:
            span = _span(block.branches)
            prefix = (block.prefix_start, block.prefix_length)
            shapes.setdefault((prefix[1], span[1]), []).append((prefix, span))
    return [
        (Segments([prefix for prefix, _ in pairs], device), Segments([span for _, span in pairs], device))
        for pairs in shapes.values()
    ]


def _merge_unshared(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """Drop empty branches and join all blocks without prefix into one, which costs fewer calls."""
    kept = [
        Block(
            prefix_start=block.prefix_start,
            prefix_length=block.prefix_length,
            branches=tuple(branch for branch in block.branches if branch[1]),
        )
        for block in blocks
    ]
    free = tuple(branch for block in kept if not block.prefix_length for branch in block.branches)
    shared = [block for block in kept if block.prefix_length]
    return (*shared, Block(prefix_start=0, prefix_length=0, branches=free)) if free else tuple(shared)


def _check_cover(segments: Sequence[tuple[int, int]]) -> int:
    """Return the number of tokens covered; raise ValueError if the segments leave a gap or overlap."""
    end = 0
    for start, length in sorted(segments):
        if start != end:
            raise ValueError(f"blocks leave a gap or overlap at token {min(start, end)}")
        end = start + length
    return end


@functools.cache
def kernel_available(device_type: str) -> bool:
    """True if torch has the kernel that returns the log-sum-exp here, and it handles grouped heads correctly."""
    if device_type != "cpu" or not hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu"):
        return False
    with torch.no_grad():
        query = torch.linspace(-1, 1, 2 * 5 * 4, dtype=torch.float64).reshape(1, 2, 5, 4)
        try:
            out, lse = _flash(query, query[:, :1], query[:, 1:], 0.0, False, scale=0.5)
        except (RuntimeError, NotImplementedError):
            return False
        scores = query @ query[:, :1].transpose(-1, -2) * 0.5
        return torch.allclose(lse, scores.logsumexp(-1)) and torch.allclose(out, scores.softmax(-1) @ query[:, 1:])


REFUSED = ("softcap", "s_aux", "sinks", "position_bias", "head_mask")
"""Keywords by which models ask for more than a scaled causal product."""


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    attention_plan: AttentionPlan | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attend as transformers calls it: by the plan, or plainly causal without one (right-padded rows).

    Inputs [batch, heads, tokens, size]; returns [batch, tokens, heads, size] and no weights. Raises
    UnsupportedAttention for softcaps, sinks, biases, masks, dropout and attention that is not causal.
    """
    asked = [name for name in REFUSED if others.get(name) is not None]
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if asked or dropout or not causal or attention_mask is not None or query.shape[2] != key.shape[2]:
        reasons = [*asked, "dropout" * bool(dropout), "no causal order" * (not causal), "a mask or cache"]
        raise UnsupportedAttention(f"its attention asks for {next(filter(None, reasons))}")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    if attention_plan is not None:
        return attention_plan.attend(module, query, key, value, scaling, window=sliding_window), None
    return attend_rows(query, key, value, scaling, window=sliding_window), None


def attend_rows(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float, *, window: int | None = None
) -> torch.Tensor:
    """Attend plainly causally in every row [batch, heads, tokens, size]; returns [batch, tokens, heads, size]."""
    tokens = query.shape[2]
    mask = None
    if window is not None and window < tokens:
        mask = causal_mask(tokens, 0, window=window, device=query.device)
    grouped = query.shape[1] != key.shape[1]
    out = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=grouped
    )
    return out.transpose(1, 2)


def no_mask(*_: Any, **__: Any) -> None:
    """Return no attention mask: the attention function knows the structure itself."""


def use(model: Any, name: str) -> None:
    """Make the transformers model attend by the named implementation; free of charge if it already does."""
    if model.config._attn_implementation != name:
        model.set_attn_implementation(name)


AttentionInterface.register(NAME, attention_forward)
AttentionMaskInterface.register(NAME, no_mask)


__all__ = ["NAME", "AttentionPlan", "BlockPlan", "UnsupportedAttention", "attend_rows", "attention_forward", "use"]
