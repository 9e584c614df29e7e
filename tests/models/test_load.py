"""Models load from every kind of name, or say in one message why not."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from posttrain import config
from posttrain.errors import ConfigError, ModelError
from posttrain.models.complete import seal
from posttrain.models.load import choose_device, load_model
from posttrain.models.lora import add_lora, save_adapters
from posttrain.models.tiny import build_tokenizer, build_toy
from tests.tiny_models import build_tiny

IDS = torch.tensor([[8, 9, 10, 11]])


def save_toy(folder, *, seed=1, tokenizer=None):
    model, own = build_toy(seed=seed, hidden=32, intermediate=48, layers=2, heads=4, kv_heads=2, window=64)
    model.save_pretrained(folder)
    (tokenizer or own).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(tmp_path):
    return save_toy(tmp_path / "model")


def load(path, *, seed=0, **settings):
    return load_model(config.Model(path=str(path), device="cpu", **settings), seed=seed)


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS, use_cache=False).logits


def test_toy_takes_the_runs_seed():
    expected = build_toy(seed=3)[0]
    assert torch.equal(logits(expected), logits(load("toy", seed=3).model))


def test_toy_takes_a_seed_of_its_own():
    assert load("toy", seed=3).revision_digest == load("toy:3", seed=8).revision_digest


def test_toy_of_another_seed_has_another_digest():
    assert load("toy", seed=3).revision_digest != load("toy", seed=4).revision_digest


def test_toy_says_its_window_and_stop_token():
    loaded = load("toy", seed=3)
    assert ("toy:3", 1024, (loaded.tokenizer.eos_token_id,)) == (
        loaded.name,
        loaded.window,
        loaded.generation_eos_ids,
    )


def test_folder_loads_with_its_weights(folder):
    expected = logits(build_toy(seed=1, hidden=32, intermediate=48, layers=2, heads=4, kv_heads=2, window=64)[0])
    assert torch.equal(expected, logits(load(folder).model))


def test_folder_says_its_window_and_name(folder):
    loaded = load(folder)
    assert (64, str(folder)) == (loaded.window, loaded.name)


def test_model_comes_in_evaluation_mode_with_gradients(folder):
    model = load(folder).model
    assert not model.training
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_dtype_is_taken(folder, dtype):
    assert getattr(torch, dtype) == load(folder, dtype=dtype).model.dtype


def test_tokenizer_has_its_own_template(folder):
    assert build_tokenizer().chat_template == load(folder).tokenizer.chat_template


def test_template_file_replaces_it(folder, tmp_path):
    (tmp_path / "mine.jinja").write_text("{{ messages[0].content }}")
    loaded = load(folder, chat_template=str(tmp_path / "mine.jinja"))
    assert "{{ messages[0].content }}" == loaded.tokenizer.chat_template


def test_absent_template_file_is_refused(folder, tmp_path):
    with pytest.raises(ConfigError, match=r"chat_template .*none.jinja cannot be read"):
        load(folder, chat_template=str(tmp_path / "none.jinja"))


def test_empty_template_file_is_refused(folder, tmp_path):
    (tmp_path / "mine.jinja").write_text(" \n")
    with pytest.raises(ConfigError, match="is empty"):
        load(folder, chat_template=str(tmp_path / "mine.jinja"))


def test_stop_ids_of_generation_config_and_tokenizer_are_joined(folder):
    file = folder / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "eos_token_id": [9, 5]}))
    assert (3, 5, 9) == load(folder).generation_eos_ids


def test_run_directory_loads_its_newest_checkpoint(tmp_path):
    checkpoint = tmp_path / "run" / "checkpoints" / "step-000002"
    save_toy(checkpoint / "model", seed=5)
    seal(checkpoint)
    assert torch.equal(logits(load(checkpoint / "model").model), logits(load(tmp_path / "run").model))


def test_adapters_load_on_their_base(folder, tmp_path):
    base = load(folder).model
    adapted = add_lora(base, config.Lora(rank=2), seed=0)
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter += 0.05
    save_adapters(adapted, tmp_path / "adapters")
    torch.testing.assert_close(logits(load(tmp_path / "adapters").model), logits(adapted), rtol=1e-5, atol=1e-5)


def test_adapters_of_the_toy_find_the_same_toy(tmp_path):
    save_adapters(add_lora(load("toy", seed=6).model, config.Lora(rank=2), seed=0), tmp_path / "adapters")
    expected = logits(load("toy:6").model)
    torch.testing.assert_close(logits(load(tmp_path / "adapters", seed=1).model), expected)


def test_adapters_bring_their_own_digest(tmp_path):
    save_adapters(add_lora(load("toy", seed=6).model, config.Lora(rank=2), seed=0), tmp_path / "adapters")
    assert load("toy:6").revision_digest != load(tmp_path / "adapters").revision_digest


def test_adapters_without_base_say_which(folder, tmp_path):
    save_adapters(add_lora(load(folder).model, config.Lora(rank=2), seed=0), tmp_path / "adapters")
    folder.rename(tmp_path / "moved")
    with pytest.raises(ModelError, match=r"holds only adapters for '.*model'.*does not exist"):
        load(tmp_path / "adapters")


def test_adapters_that_name_no_base_are_refused(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"x")
    with pytest.raises(ModelError, match="does not name the base model"):
        load(tmp_path)


def test_absent_folder_is_refused():
    with pytest.raises(ModelError, match="model folder nowhere/at/all does not exist"):
        load("./nowhere/at/all")


def test_hub_name_without_a_network_is_refused():
    with pytest.raises(ModelError, match="There is no local folder 'nobody/nothing', so it is taken for a hub name"):
        load("nobody/nothing")


def test_near_miss_of_a_built_in_name_is_suggested():
    with pytest.raises(ModelError, match=r"Did you mean 'smollm2'\?"):
        load("smollm")


def test_folder_without_weights_is_refused_before_loading(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="a model folder without weights"):
        load(folder)


def test_torn_weights_are_refused(folder):
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError, match="reading its weights failed"):
        load(folder)


def test_weights_that_lack_a_tensor_are_refused(folder):
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lack 1 tensors.*model.layers.1.mlp.up_proj.weight"):
        load(folder)


def test_weights_of_another_shape_are_refused(folder):
    table = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**table, "intermediate_size": 64}))
    with pytest.raises(ModelError, match="reading its weights failed"):
        load(folder)


def test_config_that_is_not_json_is_refused(folder):
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match="failed"):
        load(folder)


def test_unknown_architecture_is_refused(folder):
    (folder / "config.json").write_text('{"model_type": "novelty"}')
    with pytest.raises(ModelError, match="failed"):
        load(folder)


def test_damaged_tokenizer_is_refused(folder):
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="reading its tokenizer failed"):
        load(folder)


def test_vocabulary_larger_than_the_embedding_is_refused(tmp_path):
    build_tiny(vocab_size=61).save_pretrained(tmp_path)
    build_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="ids up to 103, its embedding only 61 rows"):
        load(tmp_path)


def test_auto_device_is_one_of_this_machine():
    assert choose_device("auto").type in ("cpu", "cuda", "mps")


def test_unknown_device_names_the_nearest():
    with pytest.raises(ConfigError, match=r"'cuds'. Did you mean 'cuda'\?"):
        choose_device("cuds")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_absent_device_says_what_is_usable():
    with pytest.raises(ConfigError, match="sees no cuda on this machine; usable: cpu"):
        choose_device("cuda")


def test_loading_shows_no_progress_bars(folder, capfd):
    load(folder)
    assert "" == capfd.readouterr().err
