"""One forward pass: rows in, log-probability and entropy of the trained tokens out.

The body runs without a cache; the head, and the last layer behind its attention, compute only the hidden states that
predict a trained token.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from posttrain.models.attention import AttentionPlan, use
from posttrain.models.heads import KEEP_BYTES, TILE_BYTES, Head, token_logprobs
from posttrain.models.last_layer import last_layer, reading
from posttrain.models.rows import RowTensors


def causal_model(model: Any) -> Any:
    """Return the transformers causal language model inside a peft model, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def body(model: Any) -> Any:
    """Return the part of a causal language model that ends in hidden states."""
    inner = model.base_model
    return getattr(model, "model", model) if inner is model else inner


def plain_attention(model: Any) -> str:
    """Return transformers' own attention for rows with images: vision towers and image tokens need not be causal."""
    return "sdpa" if getattr(model, "_supports_sdpa", False) else "eager"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Scorer:
    """A model with the settings under which its tokens are scored."""

    model: Any
    """A transformers causal language model, adapters inside or not."""
    head: Head
    """Its head."""
    implementation: str
    """Attention implementation to run under."""
    temperature: float = 1.0
    """Divides the logits; 0 counts as 1."""
    tile_bytes: int = TILE_BYTES
    """Size of one tile of logits."""
    keep_bytes: int = KEEP_BYTES
    """Limit of the probabilities kept for the backward pass."""

    def score(
        self, rows: RowTensors, *, plan: AttentionPlan | None = None, entropy_gradient: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (log-probability, entropy) of the trained tokens, [N] each; ``plan`` replaces the rows' own."""
        hidden = self.hidden(rows, plan or rows.plan)
        return self.read(hidden, rows.targets, entropy_gradient=entropy_gradient)

    def read(
        self, hidden: torch.Tensor, targets: torch.Tensor, *, entropy_gradient: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (log-probability, entropy) of ``targets`` [N] at the states ``hidden`` [N, hidden size]."""
        if not len(targets):
            weight = next(self.model.parameters())
            nothing = torch.zeros(0, dtype=torch.promote_types(weight.dtype, torch.float32), device=weight.device)
            return nothing, nothing.clone()
        return token_logprobs(
            hidden,
            self.head,
            targets,
            temperature=self.temperature,
            tile_bytes=self.tile_bytes,
            keep_bytes=self.keep_bytes,
            entropy_gradient=entropy_gradient,
        )

    def hidden(self, rows: RowTensors, plan: AttentionPlan | None) -> torch.Tensor:
        """Return the hidden states [N, hidden size] that predict the trained tokens; none costs nothing."""
        if not len(rows.sources):
            width = self.model.get_input_embeddings().weight.shape[-1]
            nothing: torch.Tensor = next(self.model.parameters()).new_zeros(0, width)
            return nothing
        use(self.model, plain_attention(self.model) if rows.images else self.implementation)
        extra = {} if plan is None else {"attention_plan": plan}
        # A model that sees gives image tokens positions of its own; on padded rows the usual ones are its default.
        where: dict[str, Any] = dict(rows.images) or {"position_ids": rows.positions}
        trunk = body(self.model)
        last = None if rows.images else last_layer(trunk)
        with nullcontext() if last is None else reading(last, rows.sources):
            out = trunk(input_ids=rows.ids, use_cache=False, **where, **extra)
        hidden: torch.Tensor = out.last_hidden_state.flatten(0, 1)
        return hidden.index_select(0, rows.sources) if last is None else hidden
