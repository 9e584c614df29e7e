"""Decoding: every way gives the log-probabilities of the model's own full recompute, and the right way is chosen."""

import peft
import pytest
import torch
import transformers

from posttrain.errors import ModelError
from posttrain.models.decoder import (
    attention_set_to,
    choose_decoder,
    evaluating,
    native_attention,
    self_test,
)
from posttrain.models.fused import MODEL_TYPES, FusedForward, effective_weight
from tests.tiny_models import FAMILIES, SIZES, build_tiny

FAST = [family for family in FAMILIES if family in MODEL_TYPES]
HYBRID = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}


def build_loud(family="qwen3", **overrides):
    """A tiny model whose weights are large enough for every part of it to show in the log-probabilities."""
    model = build_tiny(family, **overrides)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(6)
            else:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def build_from(config):
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def with_lora(model, **options):
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", **options)
    wrapped = peft.get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_" in name:
                parameter.normal_(0, 0.3)
    return wrapped.eval()


@torch.no_grad()
def decoded(decoder, prompt, completion):
    """Log-probabilities [completion + 1, V] that the decoder gives along a row."""
    (prefix,) = decoder.prefill([tuple(prompt)])
    decoder.add_row(prefix)
    heard = [prefix.logits]
    for offset, token in enumerate(completion):
        heard.append(decoder.decode(torch.tensor([token]), torch.tensor([len(prompt) + offset]), len(completion))[0])
    decoder.clear()
    return torch.log_softmax(torch.stack(heard), -1)


@torch.no_grad()
def recomputed(model, prompt, completion):
    """The same from one plain forward pass over the whole row."""
    logits = model(input_ids=torch.tensor([[*prompt, *completion]]), use_cache=False).logits[0]
    return torch.log_softmax(logits[len(prompt) - 1 :], -1)


PROMPT, COMPLETION = [5, 9, 33, 7, 12, 60, 3], [8, 1, 44, 20, 31, 17]


class TestEquality:
    @pytest.mark.parametrize("family", FAMILIES)
    @pytest.mark.parametrize("path", ["generic", "plain", "recompute"])
    def test_every_family_equals_its_own_recompute(self, family, path):
        model = build_loud(family)
        decoder, _, _ = choose_decoder(model, path, 1000)
        expected = recomputed(model, PROMPT, COMPLETION)
        assert torch.allclose(expected, decoded(decoder, PROMPT, COMPLETION), rtol=0, atol=1e-5)

    @pytest.mark.parametrize("family", FAST)
    def test_the_fast_forward_equals_the_models_own(self, family):
        model = build_loud(family)
        decoder, _, _ = choose_decoder(model, "fast", 1000)
        expected = recomputed(model, PROMPT, COMPLETION)
        assert torch.allclose(expected, decoded(decoder, PROMPT, COMPLETION), rtol=0, atol=1e-5)

    @pytest.mark.parametrize("family", FAST)
    def test_in_float64_fast_and_recompute_agree_to_the_norms_float32(self, family):
        model = build_loud(family, dtype=torch.float64)
        assert self_test(choose_decoder(model, "fast", 1000)[0], model) < 1e-5

    @pytest.mark.parametrize(
        ("family", "path"),
        [
            ("qwen2", "fast"),
            ("qwen3", "fast"),
            ("mistral", "fast"),
            ("gemma2", "generic"),
            ("gemma3", "generic"),
            ("phi3", "generic"),
        ],
    )
    def test_sliding_windows_shorter_than_the_row_are_kept(self, family, path):
        layers = {"layer_types": ["sliding_attention", "full_attention"], "use_sliding_window": True}
        overrides = layers if family in ("qwen2", "qwen3") else {}
        model = build_loud(family, sliding_window=4, **overrides)
        decoder, chosen, _ = choose_decoder(model, "auto", 1000)
        assert path == chosen
        expected = recomputed(model, PROMPT, COMPLETION)
        assert torch.allclose(expected, decoded(decoder, PROMPT, COMPLETION), rtol=0, atol=1e-5)

    @pytest.mark.parametrize(
        "overrides", [{"attention_bias": True}, {"mlp_bias": True}, {"tie_word_embeddings": False}], ids=str
    )
    def test_biases_and_an_untied_head_are_fast_too(self, overrides):
        model = build_loud("llama", **overrides)
        assert "fast" == choose_decoder(model, "auto", 1000)[1]

    def test_prompts_beyond_the_prefill_size_are_split(self):
        model = build_loud()
        whole, parts = choose_decoder(model, "fast", 1000)[0], choose_decoder(model, "fast", 4)[0]
        with torch.no_grad():
            for one, other in zip(
                whole.prefill([(5, 6), (7, 8, 9), (1,)]), parts.prefill([(5, 6), (7, 8, 9), (1,)]), strict=True
            ):
                assert one.ids == other.ids
                assert torch.allclose(one.logits, other.logits, rtol=0, atol=1e-5)


class TestChoice:
    @pytest.mark.parametrize("family", FAMILIES)
    def test_the_fastest_way_that_fits_is_taken(self, family):
        expected = "fast" if family in FAST else "generic"
        _, path, reason = choose_decoder(build_tiny(family), "auto", 1000)
        assert expected == path
        assert reason.startswith(f"{expected} path, log-probabilities within")

    @pytest.mark.filterwarnings("ignore")
    def test_hybrid_linear_attention_goes_the_plain_way_and_says_why(self):
        sizes = {**SIZES, "num_hidden_layers": 4, **HYBRID}
        model = build_from(transformers.Qwen3_5TextConfig(**sizes))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(4)
        _, path, reason = choose_decoder(model, "auto", 1000)
        assert "plain" == path
        assert "generic: log-probabilities differ" in reason

    def test_a_model_with_its_own_attention_goes_the_plain_way(self):
        model = build_from(transformers.BloomConfig(vocab_size=61, hidden_size=32, n_layer=2, n_head=4))
        _, path, reason = choose_decoder(model, "auto", 1000)
        assert "plain" == path
        assert "does not send its attention through the transformers interface" in reason

    def test_attention_sinks_go_the_plain_way(self):
        sizes = {
            **SIZES,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        }
        _, path, reason = choose_decoder(build_from(transformers.GptOssConfig(**sizes)), "auto", 1000)
        assert "plain" == path
        assert "sinks" in reason

    def test_positions_that_depend_on_the_batch_go_the_plain_way(self):
        rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
        _, path, reason = choose_decoder(build_tiny("llama", rope_parameters=rope), "auto", 1000)
        assert "plain" == path
        assert "rotary type dynamic" in reason

    def test_a_forward_hook_rules_the_fast_way_out(self):
        model = build_tiny()
        model.model.layers[0].mlp.register_forward_hook(lambda module, inputs, output: output)
        assert "generic" == choose_decoder(model, "auto", 1000)[1]

    def test_a_way_asked_for_that_fails_is_an_error_with_the_reason(self):
        with pytest.raises(ModelError, match="model type gemma2 is not one of"):
            choose_decoder(build_tiny("gemma2"), "fast", 1000)

    def test_a_wrong_forward_is_found_out(self):
        model = build_loud()
        decoder, _, _ = choose_decoder(model, "fast", 1000)
        decoder._forward._layers[1].options = decoder._forward._layers[0].options.__class__(scaling=0.01)
        assert self_test(decoder, model) > 1e-3

    def test_what_is_not_a_transformers_model_is_refused(self):
        with pytest.raises(ModelError, match="needs a transformers model; got Linear"):
            choose_decoder(torch.nn.Linear(2, 2), "auto", 1000)


class TestAdapters:
    @pytest.mark.parametrize("path", ["fast", "generic", "plain"])
    def test_lora_counts_on_every_path(self, path):
        model = with_lora(build_loud())
        decoder, _, _ = choose_decoder(model, path, 1000)
        expected = recomputed(model, PROMPT, COMPLETION)
        assert torch.allclose(expected, decoded(decoder, PROMPT, COMPLETION), rtol=0, atol=1e-5)

    def test_a_trained_adapter_reaches_the_fused_copies_on_refresh(self):
        model = with_lora(build_loud())
        decoder, _, _ = choose_decoder(model, "fast", 1000)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.mul_(-1)
        decoder.refresh()
        expected = recomputed(model, PROMPT, COMPLETION)
        assert torch.allclose(expected, decoded(decoder, PROMPT, COMPLETION), rtol=0, atol=1e-5)

    def test_a_variant_that_is_no_plain_sum_leaves_the_fast_way(self):
        model = with_lora(build_loud(), use_dora=True)
        decoder, path, reason = choose_decoder(model, "auto", 1000)
        assert "generic" == path
        assert "not a plain sum" in reason
        expected = recomputed(model, PROMPT, COMPLETION)
        assert torch.allclose(expected, decoded(decoder, PROMPT, COMPLETION), rtol=0, atol=1e-5)

    def test_a_plain_layer_is_read_in_place(self):
        layer = torch.nn.Linear(3, 3)
        assert effective_weight(layer) is layer.weight


class TestWeights:
    def test_weights_written_by_the_learner_are_noticed_at_the_next_prompt(self):
        model = build_loud()
        decoder, _, _ = choose_decoder(model, "fast", 1000)
        with torch.no_grad():
            model.model.layers[0].self_attn.q_proj.weight.mul_(-1)
            model.model.layers[1].mlp.up_proj.weight.mul_(0.5)
        expected = recomputed(model, PROMPT, COMPLETION)
        assert torch.allclose(expected, decoded(decoder, PROMPT, COMPLETION), rtol=0, atol=1e-5)

    def test_the_fused_copies_are_written_in_place(self):
        forward = FusedForward(build_tiny())
        before = forward._layers[0].qkv.data_ptr()
        forward.refresh()
        assert before == forward._layers[0].qkv.data_ptr()


class TestSwitching:
    def test_attention_is_put_back(self):
        model = build_tiny()
        with attention_set_to(model, "eager"):
            assert "eager" == model.config._attn_implementation
        assert "sdpa" == model.config._attn_implementation

    @pytest.mark.parametrize("path", ["generic", "plain", "recompute"])
    def test_decoding_leaves_attention_and_mode_as_they_were(self, path):
        model = build_tiny()
        model.train()
        model.model.layers[0].eval()
        decoder, _, _ = choose_decoder(model, path, 1000)
        decoded(decoder, PROMPT, COMPLETION)
        assert "sdpa" == model.config._attn_implementation
        assert (True, False, True) == (model.training, model.model.layers[0].training, model.model.layers[1].training)

    def test_evaluating_switches_only_what_was_training(self):
        model = build_tiny().train()
        with evaluating(model):
            assert not any(module.training for module in model.modules())
        assert all(module.training for module in model.modules())

    def test_the_native_implementation_is_found_when_another_is_set(self):
        model = build_tiny("gemma2")
        with attention_set_to(model, "flex_attention"):
            assert "eager" == native_attention(model)

    def test_the_global_generator_is_not_moved(self):
        model = build_tiny()
        before = torch.get_rng_state()
        choose_decoder(model, "auto", 1000)
        assert torch.equal(before, torch.get_rng_state())
