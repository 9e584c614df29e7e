"""A folder with a tiny model, a recipe and tasks, and the command line at hand."""

import json

import pytest
import tomli_w

from posttrain import config
from posttrain.launch import launch
from tests.cli.commands import caller
from tests.toy_runs import ROWS, build_loaded, table

HELD_OUT = {"tasks": {"path": "held_out.jsonl"}, "samples": 2}


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """Model, tasks and recipes on disk; nobody writes into it."""
    folder = tmp_path_factory.mktemp("place")
    loaded = build_loaded()
    loaded.model.save_pretrained(folder / "model")
    loaded.tokenizer.save_pretrained(folder / "model")
    lines = [json.dumps(row) + "\n" for row in ROWS]
    (folder / "tasks.jsonl").write_text("".join(lines[:4]), encoding="utf-8")
    (folder / "held_out.jsonl").write_text("".join(lines[4:]), encoding="utf-8")
    sections = {"model": {"path": "model"}, "tasks": {"path": "tasks.jsonl"}, "rewards": [{"type": "exact"}]}
    for kind in ("grpo", "sft"):
        found = table(kind, evaluation=HELD_OUT) | sections
        (folder / f"{kind}.toml").write_text(tomli_w.dumps(config.plain(found)), encoding="utf-8")
    return folder


@pytest.fixture
def here(place, tmp_path, monkeypatch):
    """An empty current folder from which the model, tasks and recipes can be reached by name."""
    for path in place.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def posttrain(here, monkeypatch, capsys):
    """The command; ``posttrain("train", …)`` returns exit code and output."""
    return caller(monkeypatch, capsys)


@pytest.fixture(scope="session")
def finished(place, tmp_path_factory):
    """A finished run, made once."""
    path = tmp_path_factory.mktemp("finished") / "run"
    raw = table("grpo", evaluation={"tasks": {"path": str(place / "held_out.jsonl")}, "samples": 2}) | {
        "model": {"path": str(place / "model")},
        "tasks": {"path": str(place / "tasks.jsonl")},
        "rewards": [{"type": "exact"}],
    }
    raw["run"] = raw["run"] | {"directory": str(path)}
    launch(config.validate(config.Recipe, raw, where="test"), check=False)
    return path
