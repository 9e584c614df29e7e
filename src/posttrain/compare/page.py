"""An algorithm's page as Markdown: its module's docstring, its Config, its needs and its note, each said once.

The docstring gives formula, source and assumptions; the Config gives the defaults; the needs give the cost; the note
(``algorithms/NAME.toml``) gives what only a person can say. Nothing on the page is written twice anywhere.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from posttrain.compare.cost import cost_of, cost_row
from posttrain.compare.notes import Note, plain, read_note
from posttrain.compare.terms import algorithm_terms, idle_terms
from posttrain.config import Plug
from posttrain.errors import ConfigError
from posttrain.plugs import build_plug, find_plug, plug_names, validated
from posttrain.presets.read import preset_names, read_preset

__all__ = ["page", "page_index"]

COST = (
    "Weight copies: four for a model that trains with AdamW, one for a frozen one, without LoRA and with models of one "
    "size. Passes per row, when a batch is one optimizer step; more steps per batch add one scoring pass for the old "
    "log-probabilities."
)
LINK = re.compile(r"https?://[^\s,;)]+[^\s,;.:)]|arXiv:? ?\d{4}\.\d{4,5}")


def page(name: str) -> str:
    """The page of an algorithm, shipped or the user's own (``module:Class``); ConfigError for an unknown name."""
    _, made = find_plug("algorithms", name)
    algorithm, config = build_plug("algorithms", Plug(type=name)), validated("algorithms", Plug(type=name))
    note, text = read_note(name), docstring(made)
    parts = [
        f"# {note.title if note else name}",
        note.purpose if note else "",
        f'`algorithm.type = "{name}"` · {sources(text)}'.removesuffix(" · "),
        "## Formula",
        f"```text\n{text}\n```",
        "## Terms",
        table(("term", "here"), telling_terms(algorithm, config, note)),
        "## Defaults",
        defaults(config),
        "## What it needs",
        cost_table(name, note),
        note.cost if note else "",
        *judgement(note),
        *library_presets(name),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def telling_terms(algorithm: Any, config: Any, note: Note | None) -> list[tuple[str, str]]:
    """The terms, without options at their defaults, which have a table of their own."""
    idle = idle_terms(algorithm, config, note)
    return [item for item in algorithm_terms(algorithm, config, note).items() if item[0] not in idle]


def page_index() -> str:
    """One line per shipped algorithm."""
    rows = []
    for name in plug_names("algorithms"):
        note = read_note(name)
        rows.append((f"[{name}]({name}.md)", note.title if note else "", note.purpose if note else ""))
    return "# Algorithms\n\n" + table(("algorithm", "name", "what for"), rows) + "\n"


def docstring(made: Any) -> str:
    """The docstring of the module a plug comes from, or of the class where the module has none."""
    module = sys.modules.get(getattr(made, "__module__", ""))
    return inspect.cleandoc((module and module.__doc__) or made.__doc__ or "This algorithm has no docstring.")


def sources(text: str) -> str:
    """Every paper a docstring links to, as links."""
    links = []
    for found in LINK.findall(text):
        number = re.search(r"\d{4}\.\d{4,5}", found)
        link = found if found.startswith("http") else f"https://arxiv.org/abs/{number[0] if number else ''}"
        links.append(f"<{link}>")
    return " · ".join(dict.fromkeys(links))


def defaults(config: Any) -> str:
    """Options, defaults and their sentences; where a default comes from stands in the docstring above."""
    fields = getattr(type(config), "model_fields", {})
    if not fields:
        return "It has no options."
    rows = [(f"`{name}`", plain(getattr(config, name)), sentence(field)) for name, field in fields.items()]
    return table(("option", "default", "meaning"), rows)


def sentence(field: Any) -> str:
    """The sentence under a field, on one line."""
    return " ".join((field.description or "").split())


def cost_table(name: str, note: Note | None) -> str:
    """Models and passes beside the neighbours'."""
    known = plug_names("algorithms")
    names = [name, *(other for other in (note.neighbours if note else ()) if other in known and other != name)]
    rows = [cost_row(one, cost_of(build_plug("algorithms", Plug(type=one)).needs)) for one in names]
    head = ("algorithm", "models", "weight copies", "sampled per prompt", "scoring passes", "training passes")
    return f"{table(head, rows)}\n\n{COST}"


def judgement(note: Note | None) -> list[str]:
    """When to take it, when not, and how it fails."""
    if note is None:
        return []
    failures = "\n".join(f"* {failure}" for failure in note.failures)
    return ["## When to use it", note.when, note.otherwise, "## How it fails", failures]


def library_presets(name: str) -> list[str]:
    """Presets of other libraries that are this algorithm with other options."""
    presets = [read_preset(preset) for preset in preset_names()]
    rows = [
        (
            f"`{preset.name}`",
            ", ".join(f"{key} {plain(value)}" for key, value in preset.options.items()),
            f"{preset.version}: {preset.source}",
        )
        for preset in presets
        if preset.algorithm == name
    ]
    if not rows:
        return []
    return [
        "## As other libraries compute it",
        table(("preset", "options", "read in"), rows),
        f"`posttrain diff {name} {rows[0][0].strip('`')}` shows what that does to a gradient.",
    ]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; a bar inside a cell is escaped."""
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    lines += [" | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in row) for row in rows]
    if len(lines) == 2:
        raise ConfigError("a table without rows")
    return "\n".join(f"| {line} |" for line in lines)
