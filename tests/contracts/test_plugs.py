"""Every file in a plug folder is a plug of its socket, and each rule notices a planted violation."""

import importlib
import sys
from pathlib import Path

import pytest

import posttrain
from tests.contracts.plug_rules import SOCKETS, plug_faults

PACKAGE = Path(posttrain.__file__).parent
PLUGS = [
    f"{folder}.{path.stem}"
    for folder in SOCKETS
    for path in sorted((PACKAGE / folder).glob("*.py"))
    if path.stem != "__init__"
]
GOOD = '''"""A reward that counts."""

from posttrain.config import Settings

__all__ = ["Config", "Count"]


class Config(Settings):
    """Settings."""

    step: int = 1
    """How much each counts."""


class Count:
    """Counts."""

    def __init__(self, config, name="count"):
        self.config = config
        self.name = name

    async def score(self, rollouts, task):
        return [self.config.step for _ in rollouts]
'''


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Import a module from its text."""
    monkeypatch.syspath_prepend(tmp_path)

    def from_text(text):
        (tmp_path / "planted_plug.py").write_text(text)
        importlib.invalidate_caches()
        monkeypatch.delitem(sys.modules, "planted_plug", raising=False)
        return importlib.import_module("planted_plug")

    return from_text


@pytest.mark.parametrize("plug", PLUGS)
def test_every_plug_file_fills_its_socket(plug):
    module = importlib.import_module(f"posttrain.{plug}")
    assert [] == plug_faults(module, SOCKETS[plug.split(".")[0]])


def test_a_good_plug_has_no_fault(load):
    assert [] == plug_faults(load(GOOD), SOCKETS["rewards"])


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('"""A reward that counts."""', "", "no module docstring"),
        ('["Config", "Count"]', '["Count"]', "__all__ must be Config and one class; got ['Count']"),
        ('["Config", "Count"]', '["Config"]', "__all__ must be Config and one class; got ['Config']"),
        (
            '"Count"]',
            '"Count", "Settings"]',
            "__all__ must be Config and one class; got ['Config', 'Count', 'Settings']",
        ),
        ('"Count"]', '"Nothing"]', "Nothing is not a class"),
        ("class Config(Settings)", "class Config", "Config is not a posttrain.config.Settings"),
        ("class Config(Settings)", "class Config(Settings, frozen=False)", "Config is not frozen"),
        ("class Config(Settings)", "class Config(Settings, extra='allow')", "Config lets unknown keys pass"),
        ("config, name=", "name=", "the first constructor parameter is not config; got ['name']"),
        ("config, name=", "config, colour, name=", "unknown constructor parameters ['colour']"),
        ("async def score", "async def rate", "method score is missing"),
        ("async def score", "def score", "method score must be async"),
        ("rollouts, task)", "rollouts)", "method score lacks parameters ['task']"),
        ("rollouts, task)", "rollouts, task, more)", "method score demands more, which no caller gives"),
        ("self.name = name", "pass", "attribute name is missing"),
    ],
)
def test_a_planted_fault_is_noticed(old, new, fault, load):
    assert old in GOOD
    assert fault in plug_faults(load(GOOD.replace(old, new, 1)), SOCKETS["rewards"])


def test_a_further_parameter_with_a_default_is_welcome(load):
    assert [] == plug_faults(load(GOOD.replace("rollouts, task)", "rollouts, task, more=None)")), SOCKETS["rewards"])
