"""Writes and reads the weights a learner trains: a standalone model, and the exact adapter if there is one.

model/     what AutoModelForCausalLM.from_pretrained loads; adapters are merged into it
adapter/   peft's own files; what training continues from (merging rounds)
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers.utils import logging

from posttrain.errors import RecordError
from posttrain.models.scoring import causal_model

MODEL, ADAPTER = "model", "adapter"


def has_adapter(model: Any) -> bool:
    """True for a peft model."""
    return hasattr(model, "get_base_model")


def save_weights(model: Any, folder: Path) -> None:
    """Write the standalone model to ``folder/model`` and, for LoRA, the adapter to ``folder/adapter``."""
    inner = causal_model(model)
    with _no_progress_bar():
        if not has_adapter(model):
            inner.save_pretrained(folder / MODEL)
            return
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Could not find a config file")
            model.save_pretrained(folder / ADAPTER)
        inner.save_pretrained(folder / MODEL, state_dict=merged_weights(model))


def load_weights(model: Any, folder: Path) -> None:
    """Copy what `save_weights` wrote into the live model, bit for bit; raises RecordError if it does not fit."""
    if has_adapter(model):
        wanted = {_stored_name(name, model): p for name, p in model.named_parameters() if p.requires_grad}
        found = load_file(folder / ADAPTER / "adapter_model.safetensors")
    else:
        inner = causal_model(model)
        wanted = dict(inner.named_parameters())
        with _no_progress_bar():
            found = dict(type(inner).from_pretrained(folder / MODEL, dtype=inner.dtype).named_parameters())
    misfits = sorted(n for n in wanted if n not in found or found[n].shape != wanted[n].shape)
    if misfits or len(found) != len(wanted):
        raise RecordError(
            f"weights in {folder} are of another model or adapter: {len(found)} tensors for {len(wanted)}, "
            f"first misfit {misfits[:1] or sorted(set(found) - set(wanted))[:1]}. Resume with its own recipe"
        )
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.copy_(found[name])


def merged_weights(model: Any) -> dict[str, torch.Tensor]:
    """Return the weights of the plain model with every active adapter added in; the live model is not touched."""
    merged: dict[str, torch.Tensor] = {}
    modules = dict(causal_model(model).named_modules())
    for name, tensor in causal_model(model).state_dict().items():
        owner, _, leaf = name.rpartition(".")
        if "lora_" in name:
            continue
        if not owner.endswith(".base_layer"):
            merged[name] = tensor
            continue
        layer = modules[owner.removesuffix(".base_layer")]
        deltas = [layer.get_delta_weight(adapter) for adapter in layer.active_adapters] if leaf == "weight" else []
        merged[name.replace(".base_layer.", ".")] = sum(deltas, tensor.detach().clone()) if deltas else tensor
    return merged


def _stored_name(name: str, model: Any) -> str:
    """Return the name under which peft stores an adapter's parameter: without the adapter's own name."""
    return name.replace(f".{model.active_adapter}.", ".")


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Keep transformers from drawing over the run's own display."""
    display: Any = logging
    shown = display.is_progress_bar_enabled()
    display.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            display.enable_progress_bar()
