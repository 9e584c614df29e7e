"""Runs the last decoder layer behind its attention only at the places whose hidden state is read.

Behind the last attention a token touches no other, so output of the layer's MLP at places that predict no trained token
is never used: prompts, and all of a row but one token for a reward model. For layers of the form

    x = x + attention(norm(x)),    x = x + mlp(norm(x))

that `posttrain` knows by class; every other model runs whole. `posttrain.models.selftest` proves the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

KNOWN = frozenset(
    {"LlamaDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer", "MistralDecoderLayer", "SmolLM3DecoderLayer"}
)
"""Classes of transformers whose forward is the formula above and nothing else."""


def last_layer(body: Any) -> Any | None:
    """Return the last decoder layer of a body of a known form, else None."""
    layers = getattr(body, "layers", None)
    if not isinstance(layers, torch.nn.ModuleList) or not len(layers):
        return None
    layer: Any = layers[-1]
    # A layer that is recomputed in the backward runs when `reading` is over.
    special = layer._forward_hooks or layer._forward_pre_hooks or getattr(layer, "gradient_checkpointing", False)
    plain = type(layer).__name__ in KNOWN and type(layer).__module__.startswith("transformers.models.")
    return layer if plain and not special else None


@contextmanager
def reading(layer: Any, places: torch.Tensor) -> Iterator[None]:
    """Let the layer return [1, N, hidden] for the places [N] of its flattened rows while the block runs."""

    def forward(hidden_states: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        mixed, _ = layer.self_attn(layer.input_layernorm(hidden_states), *arguments, **options)
        x = sum(part.flatten(0, 1).index_select(0, places).unsqueeze(0) for part in (hidden_states, mixed))
        found: torch.Tensor = x + layer.mlp(layer.post_attention_layernorm(x))
        return found

    layer.forward = forward
    try:
        yield
    finally:
        del layer.forward
