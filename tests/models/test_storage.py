"""Stored weights load standalone and come back bit for bit, with adapters and without."""

import pytest
import torch
import transformers

from posttrain import config
from posttrain.errors import RecordError
from posttrain.models.lora import add_lora
from posttrain.models.storage import load_weights, merged_weights, save_weights
from tests.tiny_models import build_tiny


def build_adapted(seed=0, targets="all-linear", family="qwen3"):
    """A model whose adapters do something."""
    model = add_lora(build_tiny(family), config.Lora(rank=2, targets=targets), seed=seed)
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def logits(model):
    with torch.no_grad():
        return model(input_ids=torch.arange(3, 20)[None], use_cache=False).logits


def weights(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def assert_same(expected, actual):
    assert expected.keys() == actual.keys()
    assert all(torch.equal(expected[name], actual[name]) for name in expected)


@pytest.mark.parametrize("family", ["qwen3", "gemma3", "granite"])
def test_a_full_model_comes_back_bit_for_bit(family, tmp_path):
    model, other = build_tiny(family, seed=0), build_tiny(family, seed=1)
    save_weights(model, tmp_path)
    load_weights(other, tmp_path)
    assert_same(weights(model), weights(other))


def test_float64_weights_keep_every_bit(tmp_path):
    model, other = (build_tiny(dtype=torch.float64, seed=seed) for seed in (0, 1))
    save_weights(model, tmp_path)
    load_weights(other, tmp_path)
    assert_same(weights(model), weights(other))


def test_loading_keeps_the_parameters_themselves(tmp_path):
    model = build_tiny()
    save_weights(model, tmp_path)
    before = [id(p) for p in model.parameters()]
    load_weights(model, tmp_path)
    assert before == [id(p) for p in model.parameters()]


def test_tied_weights_stay_tied(tmp_path):
    model = build_tiny()
    save_weights(model, tmp_path)
    load_weights(model, tmp_path)
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_adapters_come_back_bit_for_bit(tmp_path):
    model, other = build_adapted(0), build_adapted(1)
    save_weights(model, tmp_path)
    load_weights(other, tmp_path)
    assert_same(weights(model), weights(other))


@pytest.mark.parametrize("targets", ["all-linear", ("q_proj", "v_proj")])
def test_an_adapted_model_is_stored_standalone_too(targets, tmp_path):
    model = build_adapted(targets=targets)
    save_weights(model, tmp_path)
    alone = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    torch.testing.assert_close(logits(model), logits(alone), atol=1e-5, rtol=1e-5)


def test_biases_of_adapted_layers_are_stored(tmp_path):
    model = build_adapted(family="qwen2")
    with torch.no_grad():
        model.get_base_model().model.layers[0].self_attn.q_proj.base_layer.bias.fill_(0.7)
    save_weights(model, tmp_path)
    alone = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    torch.testing.assert_close(logits(model), logits(alone), atol=1e-5, rtol=1e-5)


def test_saving_leaves_the_live_model_alone(tmp_path):
    model = build_adapted()
    before = weights(model)
    save_weights(model, tmp_path)
    assert_same(before, weights(model))


def test_merged_weights_have_the_plain_models_names():
    assert build_tiny().state_dict().keys() == merged_weights(build_adapted()).keys()


def test_no_attention_implementation_is_written(tmp_path):
    model = build_tiny()
    model.set_attn_implementation("eager")
    save_weights(model, tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert "sdpa" == loaded.config._attn_implementation


def test_another_adapter_is_refused(tmp_path):
    save_weights(build_adapted(targets=("q_proj",)), tmp_path)
    with pytest.raises(RecordError, match="another model or adapter"):
        load_weights(build_adapted(targets=("v_proj",)), tmp_path)


def test_an_adapter_of_more_layers_is_refused(tmp_path):
    save_weights(build_adapted(), tmp_path)
    with pytest.raises(RecordError, match="another model or adapter"):
        load_weights(build_adapted(targets=("v_proj",)), tmp_path)


def test_another_size_is_refused(tmp_path):
    save_weights(build_tiny(), tmp_path)
    with pytest.raises(RecordError, match="another model or adapter"):
        load_weights(build_tiny(num_hidden_layers=1), tmp_path)


def test_no_progress_bar_is_drawn(tmp_path, capfd):
    model = build_tiny()
    save_weights(model, tmp_path)
    load_weights(model, tmp_path)
    assert "shards" not in capfd.readouterr().err
