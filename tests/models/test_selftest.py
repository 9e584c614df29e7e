"""The self-test admits what gives the model's own numbers and refuses the rest, with a reason."""

import pytest
import torch
import transformers

from posttrain import config
from posttrain.errors import ModelError
from posttrain.models import selftest
from posttrain.models.attention import NAME, BlockPlan
from posttrain.models.lora import add_lora
from posttrain.models.selftest import evaluation, probe_samples, supported_layouts
from tests.tiny_models import FAMILIES, SIZES, build_tiny

ALL = {"padded", "packed", "shared"}
LINEAR = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}


def build(kind, **fields):
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(kind(**(SIZES | fields))).eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("family", set(FAMILIES) - {"gemma2"})
def test_plain_attention_allows_every_layout(family, dtype):
    support = supported_layouts(build_tiny(family, dtype=dtype))
    assert ALL == support.layouts
    assert (NAME, "") == (support.implementation, support.reason)


def test_softcapped_attention_stays_with_padded_rows_of_its_own():
    support = supported_layouts(build_tiny("gemma2"))
    assert {"padded"} == support.layouts
    assert "eager" == support.implementation
    assert "softcap" in support.reason


def test_attention_sinks_stay_with_padded_rows_of_their_own():
    support = supported_layouts(build(transformers.GptOssConfig, num_local_experts=4, num_experts_per_tok=2))
    assert ({"padded"}, "eager") == (support.layouts, support.implementation)
    assert "s_aux" in support.reason


def test_hybrid_linear_attention_is_refused_for_sharing_and_packing():
    support = supported_layouts(build(transformers.Qwen3_5TextConfig, num_hidden_layers=4, **LINEAR))
    assert {"padded"} == support.layouts
    assert "linear_attention" in support.reason


def test_the_numbers_alone_refuse_hybrid_linear_attention(monkeypatch):
    monkeypatch.setattr(selftest, "_mixes_neighbours", lambda model: "")
    support = supported_layouts(build(transformers.Qwen3_5TextConfig, num_hidden_layers=4, **LINEAR))
    assert {"padded"} == support.layouts
    assert "no shared layout: log-probabilities are off by" in support.reason


def test_convolutions_along_the_row_are_refused():
    model = build_tiny()
    model.model.layers[0].blur = torch.nn.Conv1d(1, 1, 3)
    support = supported_layouts(model)
    assert {"padded"} == support.layouts
    assert "convolutions" in support.reason


def test_attention_in_chunks_stays_with_its_own():
    support = supported_layouts(build_tiny("llama", attention_chunk_size=4))
    assert ({"padded"}, "sdpa") == (support.layouts, support.implementation)
    assert "chunks" in support.reason


def test_models_outside_the_attention_interface_stay_with_their_own():
    model = transformers.BloomConfig(vocab_size=61, hidden_size=32, n_layer=2, n_head=4)
    support = supported_layouts(transformers.AutoModelForCausalLM.from_config(model).eval())
    assert {"padded"} == support.layouts
    assert support.implementation != NAME


@pytest.mark.parametrize("family", ["mistral", "gemma3"])
def test_a_short_sliding_window_is_exercised_and_allowed(family):
    model = build_tiny(family, sliding_window=4)
    assert max(map(len, probe_samples(model))) > 4
    assert ALL == supported_layouts(model).layouts


def test_a_window_that_the_attention_is_not_told_is_refused(monkeypatch):
    model = build_tiny("mistral", sliding_window=4096)
    for layer in model.model.layers:
        monkeypatch.setattr(layer.self_attn, "forward", without_window(layer.self_attn))
    support = supported_layouts(model)
    assert {"padded"} == support.layouts
    assert "sliding window" in support.reason


def without_window(layer):
    """The layer's forward with its config's window hidden for the time of the call."""
    plain = type(layer).forward

    def forward(*args, **kwargs):
        window, layer.config.sliding_window = layer.config.sliding_window, None
        try:
            return plain(layer, *args, **kwargs)
        finally:
            layer.config.sliding_window = window

    return forward


@pytest.mark.parametrize("name", ["packed", "shared"])
def test_a_wrong_layout_is_dropped_with_the_size_of_its_error(name, monkeypatch):
    plain = BlockPlan.attend

    def wrong(plan, *args, **kwargs):
        out = plain(plan, *args, **kwargs)
        return out * 1.01 if bool(plan.crosses) == (name == "shared") else out

    monkeypatch.setattr(BlockPlan, "attend", wrong)
    support = supported_layouts(build_tiny())
    assert ALL - {name} == support.layouts
    assert f"no {name} layout: log-probabilities are off by" in support.reason


def test_a_wrong_gradient_alone_is_seen(monkeypatch):
    plain = BlockPlan.attend

    def detached(plan, module, query, key, value, scaling, **others):
        return plain(plan, module, query, key.detach(), value, scaling, **others)

    monkeypatch.setattr(BlockPlan, "attend", detached)
    support = supported_layouts(build_tiny())
    assert {"padded"} == support.layouts
    assert "gradients are off by" in support.reason


def test_a_layout_that_raises_is_dropped_in_one_line(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(BlockPlan, "attend", broken)
    support = supported_layouts(build_tiny())
    assert {"padded"} == support.layouts
    assert "no packed layout: RuntimeError: first line; no shared layout: RuntimeError: first line" == support.reason


def test_nothing_about_the_model_is_left_changed():
    model = build_tiny().train()
    before = {name: p.clone() for name, p in model.named_parameters()}
    supported_layouts(model)
    assert "sdpa" == model.config._attn_implementation
    assert all(module.training for module in model.modules())
    assert all(p.grad is None and torch.equal(p, before[n]) for n, p in model.named_parameters())


def test_the_same_with_gradients_switched_off():
    with torch.no_grad():
        assert ALL == supported_layouts(build_tiny()).layouts


def test_adapters_are_tested_with_their_own_gradients():
    model = add_lora(build_tiny(), config.Lora(rank=2), seed=0)
    assert ALL == supported_layouts(model).layouts


def test_a_frozen_model_is_tested_by_its_numbers():
    assert ALL == supported_layouts(build_tiny().requires_grad_(False)).layouts


def test_a_head_that_the_config_describes_wrongly_is_called_instead():
    model = build_tiny("qwen3", tie_word_embeddings=False)
    plain = model.lm_head.forward
    model.lm_head.forward = lambda x: torch.tanh(plain(x))
    support = supported_layouts(model)
    assert support.head.weight is None
    assert ALL == support.layouts


def test_logits_that_no_head_explains_are_an_error():
    model = build_tiny()
    model.config.final_logit_softcapping = 0.1
    with pytest.raises(ModelError, match="log-probabilities are off by"):
        supported_layouts(model)


def test_probe_samples_avoid_the_pad_token():
    assert all(0 not in one.ids for one in probe_samples(build_tiny()))


def test_evaluation_switches_off_and_back():
    model = build_tiny().train()
    with evaluation(model):
        assert not any(module.training for module in model.modules())
    assert all(module.training for module in model.modules())


def test_evaluation_switches_back_after_an_error():
    model = build_tiny().train()
    with pytest.raises(KeyError, match="lost"), evaluation(model):
        raise KeyError("lost")
    assert all(module.training for module in model.modules())
