"""The last layer computes only what is read, in families whose layers are known, and nothing of the model changes."""

import pytest
import torch

from posttrain.models.last_layer import KNOWN, last_layer, reading
from posttrain.models.scoring import body
from tests.models.samples import widen_norms
from tests.tiny_models import FAMILIES, build_tiny

SHORTENED = ("llama", "qwen2", "qwen3", "mistral", "smollm3")


@pytest.mark.parametrize("family", [family for family in SHORTENED if family in FAMILIES])
def test_known_families_have_a_last_layer(family):
    trunk = body(build_tiny(family))
    assert last_layer(trunk) is trunk.layers[-1]


@pytest.mark.parametrize("family", ["gemma2", "olmo2"])
def test_other_orders_of_norms_are_left_alone(family):
    if family not in FAMILIES:
        pytest.skip("no tiny model of this family")
    assert last_layer(body(build_tiny(family))) is None


def test_a_body_without_layers_is_left_alone():
    assert last_layer(torch.nn.Linear(2, 2)) is None


def test_a_class_of_a_known_name_from_elsewhere_is_left_alone():
    other = type("Qwen3DecoderLayer", (torch.nn.Module,), {})
    trunk = torch.nn.Module()
    trunk.layers = torch.nn.ModuleList([other()])
    assert last_layer(trunk) is None


def test_a_layer_with_a_hook_runs_whole():
    trunk = body(build_tiny("qwen3"))
    trunk.layers[-1].register_forward_hook(lambda *_: None)
    assert last_layer(trunk) is None


def test_a_layer_that_is_recomputed_in_the_backward_runs_whole():
    trunk = body(build_tiny("qwen3"))
    trunk.layers[-1].gradient_checkpointing = True
    assert last_layer(trunk) is None


def read(trunk, ids, places):
    with reading(last_layer(trunk), places):
        return trunk(input_ids=ids, use_cache=False).last_hidden_state


def test_places_come_out_as_from_the_whole_layer():
    trunk = body(widen_norms(build_tiny("qwen3", dtype=torch.float64)))
    ids, places = torch.arange(3, 15).view(2, 6), torch.tensor([7, 0, 5, 5])
    whole = trunk(input_ids=ids, use_cache=False).last_hidden_state.flatten(0, 1)
    torch.testing.assert_close(read(trunk, ids, places)[0], whole[places], rtol=1e-9, atol=1e-9)


def test_gradients_are_those_of_the_whole_layer():
    trunk = body(widen_norms(build_tiny("qwen3", dtype=torch.float64)))
    ids, places = torch.arange(3, 15).view(2, 6), torch.tensor([7, 0, 5, 5])
    weights = torch.linspace(-1, 1, 4, dtype=torch.float64)[:, None]
    (trunk(input_ids=ids, use_cache=False).last_hidden_state.flatten(0, 1)[places] * weights).sum().backward()
    expected = {name: p.grad.clone() for name, p in trunk.named_parameters()}
    trunk.zero_grad()
    (read(trunk, ids, places)[0] * weights).sum().backward()
    for name, parameter in trunk.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-9, atol=1e-9)


def test_nothing_is_left_behind_even_by_an_error():
    trunk = body(build_tiny("qwen3"))
    layer = trunk.layers[-1]
    with pytest.raises(IndexError), reading(layer, torch.tensor([99])):
        trunk(input_ids=torch.arange(4)[None], use_cache=False)
    assert "forward" not in vars(layer)


def test_known_classes_exist_in_transformers():
    found = {type(body(build_tiny(family)).layers[-1]).__name__ for family in SHORTENED if family in FAMILIES}
    assert found <= KNOWN
