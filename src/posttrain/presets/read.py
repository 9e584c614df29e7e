"""Reads the presets named after libraries: what "GRPO" means in each, with the file it was read in.

``algorithm = {type = "grpo", preset = "verl-0.10"}`` in a recipe takes a preset's options; keys beside it win.
A preset holds the library's formula, not its faults: what it cannot or will not carry over stands in its notes.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from posttrain.errors import ConfigError, did_you_mean

__all__ = ["Preset", "preset_names", "read_preset", "with_preset"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """One library's defaults as options of one of our algorithms."""

    name: str
    """Name in recipes, for example ``trl-1.16``."""
    algorithm: str
    """Algorithm whose options these are."""
    library: str
    """Name of the library."""
    version: str
    """Version, and the snapshot that was read."""
    source: str
    """Files of the library in which the formula was read."""
    options: Mapping[str, Any]
    """Options of the algorithm."""
    correction: Mapping[str, Any] = field(default_factory=dict)
    """What the library does by default about tokens that another policy sampled: the recipe's ``[correction]``, which a
    preset named in a recipe does not set."""
    notes: tuple[str, ...] = ()
    """What differs from the library all the same."""


def preset_names() -> list[str]:
    """Names of all presets."""
    return sorted(_names())


def read_preset(name: str) -> Preset:
    """One preset by its name; ConfigError with the nearest one for an unknown name."""
    if name not in _names():
        raise ConfigError(f"no preset called '{name}'.{did_you_mean(name, _names())}")
    table = tomllib.loads((files(__package__) / f"{name}.toml").read_text(encoding="utf-8"))
    return Preset(name=name, **{**table, "notes": tuple(table.get("notes", ()))})


def with_preset(algorithm: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with those of ``preset`` under them, if it is named; ConfigError if it is another algorithm's."""
    name = options.get("preset")
    if name is None:
        return dict(options)
    preset = read_preset(str(name))
    if preset.algorithm != algorithm:
        raise ConfigError(
            f"preset '{name}' is a formula of algorithm '{preset.algorithm}', not of '{algorithm}': "
            f'write type = "{preset.algorithm}"'
        )
    return {**preset.options, **{key: value for key, value in options.items() if key != "preset"}}


@cache
def _names() -> tuple[str, ...]:
    found = (entry.name for entry in files(__package__).iterdir())
    return tuple(name.removesuffix(".toml") for name in found if name.endswith(".toml"))
