"""A tiny model in a folder, and a working folder of one's own, for whole runs in this process."""

import pytest

from posttrain.config import Recipe, validate
from posttrain.models.tiny import build_toy


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A folder with a model of a few thousand weights and its tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    for part in build_toy(seed=0, hidden=32, intermediate=64, layers=1, heads=2, kv_heads=1, window=64):
        part.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A fresh working folder whose modules can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def online(model, **sections):
    """A small online recipe; sections replace or extend its own."""
    table = {
        "run": {"name": "tiny", "steps": 3},
        "model": {"path": model},
        "tasks": {"generator": "maximum", "options": {"length": 2}},
        "algorithm": {"type": "grpo", "kl_coefficient": 0.0},
        "rewards": [{"type": "exact"}],
        "rollouts": {"prompts_per_step": 2, "group_size": 4, "max_new_tokens": 4},
        "learner": {"type": "local", "learning_rate": 1e-2},
    }
    for name, section in sections.items():
        table[name] = {**table.get(name, {}), **section} if isinstance(section, dict) else section
    return validate(Recipe, table, where="test")
