"""Recomputing layers in the backward pass (gradient checkpointing) while the model stays in evaluation mode.

transformers recomputes a layer only while the layer's own ``training`` flag is set; the caller sets that flag on the
layers alone, for the time of a training forward, so that no dropout inside them wakes up.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from posttrain.errors import ConfigError


def checkpointed_layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the layers that can be recomputed; ConfigError if the model has none."""
    layers: list[torch.nn.Module] = [
        module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)
    ]
    if not layers:
        raise ConfigError("this model cannot recompute its layers; set learner.gradient_checkpointing = false")
    return layers


def enable_checkpointing(model: Any) -> None:
    """Tell a transformers model to recompute its layers, under whichever name its version has for that."""
    settings = {"use_reentrant": False}
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=settings)
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=settings)
