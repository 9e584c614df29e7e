"""Reads the hand-written half of an algorithm's page: ``algorithms/NAME.toml`` beside ``algorithms/NAME.py``.

It says in words what code cannot: what the algorithm is for, when to take it, how it fails, and the terms of its
formula by the field's names. A term is text in which ``{field}`` stands for an option's value, or a table that
chooses the text ``by`` an option's value (``other`` for every value that is not named).
"""

from __future__ import annotations

import string
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from posttrain.errors import ConfigError

__all__ = ["Note", "read_note", "term_fields", "term_text"]

Term = str | Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """What a person wrote about an algorithm."""

    title: str
    """Full name."""
    purpose: str
    """What it is for, in a sentence or two."""
    when: str
    """When to take it."""
    otherwise: str
    """When to take another one, and which."""
    cost: str
    """What it costs against its neighbours, in words."""
    failures: tuple[str, ...]
    """Known failure modes: what happens, how it shows, what to do."""
    neighbours: tuple[str, ...] = ()
    """Algorithms whose cost is shown beside it."""
    terms: Mapping[str, Term] = field(default_factory=dict)
    """Terms of the formula."""


@cache
def read_note(name: str) -> Note | None:
    """The note of a shipped algorithm, or None where there is none (an algorithm of the user's own)."""
    file = files("posttrain.algorithms") / f"{name}.toml"
    if ":" in name or not file.is_file():
        return None
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    lists = {key: tuple(table.get(key, ())) for key in ("failures", "neighbours")}
    return Note(**{**table, **lists})


def term_fields(term: Term) -> set[str]:
    """Options that a term speaks of."""
    if isinstance(term, str):
        return {name for _, name, _, _ in string.Formatter().parse(term) if name}
    return {term["by"]}.union(*(term_fields(text) for key, text in term.items() if key != "by"))


def term_text(term: Term, options: Mapping[str, Any]) -> str:
    """A term with the options' values put in; ConfigError for a value that it has no text for."""
    if isinstance(term, str):
        return term.format_map({name: plain(value) for name, value in options.items()})
    value = plain(options[term["by"]])
    chosen = term.get(value, term.get("other"))
    if chosen is None:
        raise ConfigError(f"a term chosen by '{term['by']}' has no text for {value}")
    return term_text(chosen, options)


def plain(value: Any) -> str:
    """An option's value as a recipe would show it: none, true, 0.2, 1e-06."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
