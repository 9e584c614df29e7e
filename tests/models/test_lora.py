"""Adapters start as nothing, train alone and load again."""

import pytest
import torch

from posttrain import config
from posttrain.errors import ConfigError
from posttrain.models.lora import add_lora, merge_adapters, save_adapters, trainable_summary
from tests.tiny_models import build_tiny

IDS = torch.tensor([[3, 4, 5, 6, 7]])


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS, use_cache=False).logits


def disturb(model):
    """Give the B matrices, which start at zero, other values."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


def test_fresh_adapters_change_nothing():
    expected = logits(build_tiny())
    assert torch.equal(expected, logits(add_lora(build_tiny(), config.Lora(rank=4), seed=0)))


def test_only_adapters_train():
    adapted = add_lora(build_tiny(), config.Lora(rank=4), seed=0)
    assert all("lora_" in name for name, p in adapted.named_parameters() if p.requires_grad)


def test_all_linear_spares_the_head():
    adapted = add_lora(build_tiny(tie_word_embeddings=False), config.Lora(rank=2), seed=0)
    assert not any("lm_head" in name for name, p in adapted.named_parameters() if p.requires_grad)


def test_same_seed_same_adapters():
    first, second = (add_lora(build_tiny(), config.Lora(rank=4), seed=7).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_other_seed_other_adapters():
    first, second = (add_lora(build_tiny(), config.Lora(rank=4), seed=seed).state_dict() for seed in (1, 2))
    assert any(not torch.equal(first[name], second[name]) for name in first)


def test_adding_leaves_torchs_generator_alone():
    model = build_tiny()
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    add_lora(model, config.Lora(rank=4), seed=0)
    assert expected == torch.rand(1)


def test_evaluation_mode_is_kept():
    assert not add_lora(build_tiny().eval(), config.Lora(rank=4), seed=0).training


def test_named_targets_get_adapters_and_others_none():
    adapted = add_lora(build_tiny(), config.Lora(rank=2, targets=("q_proj", "v_proj")), seed=0)
    named = {name.split(".")[-4] for name, _ in adapted.named_parameters() if "lora_A" in name}
    assert {"q_proj", "v_proj"} == named


def test_one_target_may_be_a_bare_string():
    adapted = add_lora(build_tiny(), config.Lora(rank=2, targets="o_proj"), seed=0)
    assert 2 == sum("lora_A" in name for name, _ in adapted.named_parameters())


def test_unknown_target_names_the_nearest():
    with pytest.raises(ConfigError, match=r"'q_prj'. Did you mean 'q_proj'\?"):
        add_lora(build_tiny(), config.Lora(targets=("q_prj",)), seed=0)


def test_empty_targets_are_refused():
    with pytest.raises(ConfigError, match="targets is empty"):
        add_lora(build_tiny(), config.Lora(targets=()), seed=0)


def test_summary_counts_parameters():
    model = build_tiny()
    total = sum(parameter.numel() for parameter in model.parameters())
    adapted = trainable_summary(add_lora(model, config.Lora(rank=2, targets=("q_proj",)), seed=0))
    added = 2 * (2 * 32 + 2 * 32)  # two layers, A [2, 32] and B [32, 2]
    assert (added, total + added) == (adapted.trainable, adapted.total)


def test_summary_of_a_full_model_says_all_of_it_trains():
    assert "(100.00%)" in str(trainable_summary(build_tiny()))


def test_saved_adapters_merge_into_the_same_function(tmp_path):
    adapted = disturb(add_lora(build_tiny(dtype=torch.float64), config.Lora(rank=4), seed=0))
    save_adapters(adapted, tmp_path)
    merged = merge_adapters(build_tiny(dtype=torch.float64), tmp_path)
    torch.testing.assert_close(logits(merged), logits(adapted), rtol=1e-9, atol=1e-9)


def test_merged_model_is_plain_and_trains_whole(tmp_path):
    save_adapters(add_lora(build_tiny(), config.Lora(rank=4), seed=0), tmp_path)
    merged = merge_adapters(build_tiny(), tmp_path)
    assert type(build_tiny()) is type(merged)
    assert 1.0 == trainable_summary(merged).share
