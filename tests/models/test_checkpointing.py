"""Layers are recomputed only while their own flag is set, and models without such layers are refused."""

import pytest
import torch

from posttrain.errors import ConfigError
from posttrain.models.checkpointing import checkpointed_layers, enable_checkpointing
from tests.tiny_models import build_tiny


def test_every_decoder_layer_is_found():
    model = build_tiny()
    assert list(model.model.layers) == checkpointed_layers(model)


def test_a_model_without_such_layers_is_refused():
    with pytest.raises(ConfigError, match="gradient_checkpointing = false"):
        checkpointed_layers(torch.nn.Linear(2, 2))


def test_enabling_reaches_the_layers_and_leaves_the_mode():
    model = build_tiny()
    enable_checkpointing(model)
    assert all(layer.gradient_checkpointing for layer in model.model.layers)
    assert not any(module.training for module in model.modules())


def test_the_older_name_is_used_where_there_is_no_other():
    class Older:
        def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs):
            self.settings = gradient_checkpointing_kwargs

    model = Older()
    enable_checkpointing(model)
    assert {"use_reentrant": False} == model.settings
