"""The fast forward for the common decoder architecture: few operations over fused copies of the same weights.

For Llama, Qwen2, Qwen3, Mistral and SmolLM3 (pre-norm, rotary, grouped queries, SwiGLU, optional query/key norm and
biases). The q, k, v and the gate, up matrices are copied together when a version of the weights is loaded; LoRA updates
are merged into these copies. Everything else is read where the learner writes it. What the file cannot take is refused
with a ModelError, and the caller's numeric self-test refuses what it takes wrongly.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posttrain.errors import ModelError
from posttrain.models.attend import Options
from posttrain.models.cache import Store

MODEL_TYPES = frozenset({"llama", "qwen2", "qwen3", "mistral", "smollm3"})
"""Architectures this forward was written for."""

_LAYER_PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ATTENTION_PARTS = {"q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"}
_MLP_PARTS = {"gate_proj", "up_proj", "down_proj", "act_fn"}


class FusedForward:
    """Logits of packed prompts or of one new token per row; keys and values live in the store."""

    def __init__(self, model: Any) -> None:
        config = model.config
        if config.model_type not in MODEL_TYPES:
            raise ModelError(f"model type {config.model_type} is not one of {', '.join(sorted(MODEL_TYPES))}")
        if config.hidden_act != "silu":
            raise ModelError(f"activation {config.hidden_act} is not silu")
        if any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()):
            raise ModelError("a module has forward hooks, which the fused forward would not call")
        self._inner = model.model
        self._head = _expect(model.lm_head, nn.Linear, "lm_head")
        self._embedding = _expect(self._inner.embed_tokens, nn.Embedding, "embed_tokens")
        self._sources = list(model.parameters())
        self._layers = [_FusedLayer(layer, config) for layer in self._inner.layers]
        self._seen: tuple[tuple[int, int], ...] = ()
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weights together again."""
        for layer in self._layers:
            layer.refresh()
        self._seen = self._state()

    def _state(self) -> tuple[tuple[int, int], ...]:
        """Where every weight lies and how often it was written: changes when the copies are out of date."""
        return tuple((tensor.data_ptr(), tensor._version) for tensor in self._sources)

    def __call__(self, ids: Tensor, positions: Tensor, last: Tensor | None, store: Store) -> Tensor:
        """Logits [n, V] at the packed places ``last`` of prompts, or [S, V] of all rows if it is None.

        ``ids`` and ``positions`` are int64 [T].
        """
        if last is not None and self._seen != self._state():
            self.refresh()
        x = F.embedding(ids, self._embedding.weight)
        cos, sin = self._inner.rotary_emb(x, positions.unsqueeze(0))
        cos, sin = cos[0].unsqueeze(1), sin[0].unsqueeze(1).clone()
        sin[..., : sin.shape[-1] // 2].neg_()
        for layer in self._layers[:-1]:
            x = layer.forward(x, cos, sin, store, None)
        x = self._layers[-1].forward(x, cos, sin, store, last)
        norm = self._inner.norm
        return F.linear(_normed(x, norm), self._head.weight, self._head.bias)


class _FusedLayer:
    """One decoder layer over fused matrices."""

    def __init__(self, layer: Any, config: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        for module, known in ((layer, _LAYER_PARTS), (attention, _ATTENTION_PARTS), (mlp, _MLP_PARTS)):
            unknown = {name for name, _ in module.named_children()} - known
            if unknown:
                raise ModelError(
                    f"{type(module).__name__} has parts the fused forward does not know: {sorted(unknown)}"
                )
        self.layer, self.attention, self.mlp = layer, attention, mlp
        self.dim: int = attention.head_dim
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.index: int = attention.layer_idx
        self.rotates = bool(getattr(attention, "use_rope", True))
        window = getattr(attention, "sliding_window", None)
        if config.model_type == "mistral":
            window = config.sliding_window
        self.options = Options(scaling=attention.scaling, window=window)
        self.qkv: Tensor | None = None
        self.gate_up: Tensor | None = None

    def refresh(self) -> None:
        """Fuse the projections again."""
        attention, mlp = self.attention, self.mlp
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        self.qkv = _fused([effective_weight(part) for part in projections], self.qkv)
        self.gate_up = _fused([effective_weight(part) for part in (mlp.gate_proj, mlp.up_proj)], self.gate_up)
        self.qkv_bias = _fused_bias(projections)
        self.gate_up_bias = _fused_bias((mlp.gate_proj, mlp.up_proj))
        self.out, self.out_bias = effective_weight(attention.o_proj).t(), _linear(attention.o_proj).bias
        self.down, self.down_bias = effective_weight(mlp.down_proj).t(), _linear(mlp.down_proj).bias
        self.qk_norm = None
        if getattr(attention, "q_norm", None) is not None:
            q, k = attention.q_norm.weight, attention.k_norm.weight
            if q.shape != (self.dim,) or k.shape != (self.dim,):
                raise ModelError(f"query norm of shape {tuple(q.shape)} is not one per head")
            self.qk_norm = torch.cat([q.expand(self.heads, -1), k.expand(self.kv_heads, -1)])
            self.qk_eps = float(attention.q_norm.variance_epsilon)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, store: Store, last: Tensor | None) -> Tensor:
        """Return the layer's output [T, hidden], or only its rows ``last``."""
        assert self.qkv is not None
        assert self.gate_up is not None
        heads = F.linear(_normed(x, self.layer.input_layernorm), self.qkv, self.qkv_bias).view(len(x), -1, self.dim)
        both = self.heads + self.kv_heads
        rotated, value = heads[:, :both], heads[:, both:]
        if self.qk_norm is not None:
            rotated = torch.rms_norm(rotated, (self.dim,), None, self.qk_eps) * self.qk_norm
        if self.rotates:
            rotated = torch.addcmul(rotated * cos, rotated.roll(self.dim // 2, -1), sin)
        attend = store.attend_rows if store.decoding else store.attend_prompts
        mixed = attend(self.index, rotated[:, : self.heads], rotated[:, self.heads :], value, self.options)
        mixed = mixed.reshape(len(x), -1)
        if last is not None:
            x, mixed = x.index_select(0, last), mixed.index_select(0, last)
        x = _add_product(x, mixed, self.out, self.out_bias)
        hidden = F.linear(_normed(x, self.layer.post_attention_layernorm), self.gate_up, self.gate_up_bias)
        gate, up = hidden.chunk(2, dim=-1)
        return _add_product(x, F.silu(gate).mul_(up), self.down, self.down_bias)


def effective_weight(module: Any) -> Tensor:
    """Weight of a linear layer with its LoRA updates merged in; raises ModelError for what is neither."""
    if type(module) is nn.Linear:
        return module.weight
    linear = _linear(module)
    if module.merged or module.disable_adapters:
        return linear.weight
    weight = linear.weight
    for adapter in module.active_adapters:
        if adapter in module.lora_A:
            weight = weight + module.get_delta_weight(adapter).to(weight.dtype)
    return weight


def _linear(module: Any) -> nn.Linear:
    """The plain linear layer inside; raises ModelError where merging would not be the whole truth."""
    if type(module) is nn.Linear:
        return module
    base = getattr(module, "base_layer", None)
    plain_lora = hasattr(module, "get_delta_weight") and hasattr(module, "lora_A")
    if type(base) is not nn.Linear or not plain_lora or type(module).__name__ != "Linear":
        raise ModelError(f"{type(module).__name__} is neither a linear layer nor a LoRA over one")
    variants = getattr(module, "lora_variant", None) or any(getattr(module, "lora_bias", {}).values())
    if variants or any(getattr(module, "use_dora", {}).values()):
        raise ModelError("this LoRA variant is not a plain sum of weights")
    return base


def _fused(weights: list[Tensor], kept: Tensor | None) -> Tensor:
    """The matrices on top of each other, written over the last version's copy where there is one."""
    if kept is None:
        return torch.cat(weights)
    return torch.cat(weights, out=kept)


def _fused_bias(modules: tuple[Any, ...]) -> Tensor | None:
    biases: list[Tensor | None] = [_linear(module).bias for module in modules]
    if all(bias is None for bias in biases):
        return None
    present = [bias for bias in biases if bias is not None]
    if len(present) < len(biases):
        raise ModelError("only some of the fused projections have a bias")
    return torch.cat(present)


def _normed(x: Tensor, norm: Any) -> Tensor:
    return torch.rms_norm(x, (x.shape[-1],), norm.weight, norm.variance_epsilon)


def _add_product(x: Tensor, left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    out = torch.addmm(x, left, right)
    return out if bias is None else out.add_(bias)


def _expect(module: Any, kind: type, name: str) -> Any:
    if type(module) is not kind:
        raise ModelError(f"{name} is a {type(module).__name__}, not a plain {kind.__name__}")
    return module
