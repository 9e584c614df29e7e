"""``posttrain diff A B``: two algorithms, presets, recipes or runs, term by term and token by token."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from posttrain.compare.difference import Comparison, View, compare
from posttrain.compare.figure import draw, refuse_figure, telling
from posttrain.compare.sides import Side, resolve
from posttrain.compare.stored import StoredBatch, packaged, run_step
from posttrain.errors import ConfigError

CONSOLE = Console(highlight=False)
SIDE = "an algorithm, a library's preset, a recipe file or a run directory"


def run(
    a: Annotated[str, typer.Argument(help=f"First side: {SIDE}.")],
    b: Annotated[str, typer.Argument(help=f"Second side: {SIDE}.")],
    a_options: Annotated[list[str] | None, typer.Option("--a", help="Change an option of A: clip_high=0.28.")] = None,
    b_options: Annotated[list[str] | None, typer.Option("--b", help="Change an option of B.")] = None,
    stored: Annotated[Path | None, typer.Option("--run", help="Compare on a stored step of this run.")] = None,
    step: Annotated[int | None, typer.Option(min=1, help="Which step of --run.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw it: a .png, .svg or .pdf (extra [figures]).")] = None,
    terms_only: Annotated[bool, typer.Option("--terms", help="Compare the terms only.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Print the terms that differ and what they do to a stored batch."""
    if (stored is None) != (step is None):
        raise ConfigError("--run RUN and --step N belong together: both or neither")
    if terms_only and (stored is not None or figure is not None):
        raise ConfigError("--terms compares no batch: leave out --run, --step and --figure")
    if figure is not None:
        refuse_figure(figure)
    sides = resolve(a, a_options or ()), resolve(b, b_options or ())
    found = compare(*sides, None if terms_only else batch_of(stored, step))
    if figure is not None:
        draw(found, figure)
    if as_json:
        print(json.dumps(found.to_json(), allow_nan=False))
        return
    show(found)
    if figure is not None:
        CONSOLE.print(f"figure: {figure}", soft_wrap=True)


def batch_of(stored: Path | None, step: int | None) -> StoredBatch:
    """The run's step, or the packaged batch."""
    return packaged() if stored is None or step is None else run_step(stored, step)


def show(found: Comparison) -> None:
    """Everything as tables."""
    show_sides(found.a, found.b)
    show_terms(found)
    if found.batch is None:
        return
    CONSOLE.rule(escape(f"on {found.batch.label}"), align="left")
    for reason in found.not_compared:
        CONSOLE.print(f"no numbers: {escape(reason)}", soft_wrap=True)
    if not found.views:
        return
    for note in dict.fromkeys((*found.batch.notes, *effect_notes(found))):
        CONSOLE.print(f"[dim]{escape(note)}[/]", soft_wrap=True)
    show_numbers(found.views)
    show_tokens(found, telling(found.views))


def show_sides(a: Side, b: Side) -> None:
    """What the two sides are, and where a preset was read."""
    for name, side in (("A", a), ("B", b)):
        CONSOLE.print(f"[bold]{name}[/]  {escape(side.label)} ({side.kind}, algorithm {escape(side.plug.type)})")
        if side.preset is not None:
            CONSOLE.print(f"   [dim]{escape(side.preset.version)}: {escape(side.preset.source)}[/]", soft_wrap=True)
            for note in side.preset.notes:
                CONSOLE.print(f"   [yellow]![/] {escape(note)}", soft_wrap=True)


def show_terms(found: Comparison) -> None:
    """The terms that differ as a table, the others in one line."""
    same = [term for term, a, b in found.terms if a == b]
    if not found.differing:
        CONSOLE.print("no term differs")
    else:
        table = Table("term", "A", "B", title="terms that differ", title_justify="left")
        for row in found.differing:
            table.add_row(*map(escape, row))
        CONSOLE.print(table)
    if same:
        CONSOLE.print(f"[dim]the same: {escape(', '.join(same))}[/]", soft_wrap=True)


def effect_notes(found: Comparison) -> list[str]:
    """What stood in for what on each side."""
    return [
        f"{name}, {view.state.replace('_', ' ')}: {note}"
        for view in found.views
        for name, effect in zip(("A", "B"), view.effects, strict=True)
        for note in effect.notes
    ]


MEASURES: tuple[tuple[str, str, str], ...] = (
    ("gradient cosine (1: the same direction)", "cosine", "{:.4f}"),
    ("learning-rate ratio (B moves so many times as far)", "ratio", "{:.4g}"),
    ("tokens pushed the opposite way", "opposite", "{:.1%}"),
    ("tokens moved by A only", "only_a", "{:.1%}"),
    ("tokens moved by B only", "only_b", "{:.1%}"),
    ("tokens whose share of the gradient differs > 2x", "resized", "{:.1%}"),
    ("tokens that train on either side", "tokens", "{}"),
)
"""Label, number and format."""


def show_numbers(views: Sequence[View]) -> None:
    """Direction, size, and shares of tokens, in each state; and what the ratio means for a learning rate."""
    table = Table("gradient by the tokens' log-probabilities", *(view.state.replace("_", " ") for view in views))
    for label, name, form in MEASURES:
        values = [getattr(view.numbers, name) for view in views]
        table.add_row(label, *("-" if value is None else form.format(value) for value in values))
    CONSOLE.print(table)
    ratio = views[0].numbers.ratio
    if ratio:
        CONSOLE.print(
            f"A learning rate tuned for A acts like [bold]{ratio:.3g}[/] of it in B under SGD: multiply it by "
            f"{1 / ratio:.3g}. AdamW divides a constant factor out again; what stays there is where the gradient clip "
            "begins, and the balance with a KL, an entropy bonus or weight decay.",
            soft_wrap=True,
        )


def show_tokens(found: Comparison, view: View) -> None:
    """The tokens whose share of the gradient differs most."""
    if not view.numbers.most_changed:
        return
    title = f"tokens that change most ({view.state.replace('_', ' ')})"
    table = Table("rollout", "token", "advantage A", "B", "dL/dlogprob A", "B", title=title, title_justify="left")
    for token in view.numbers.most_changed:
        row = found.token_json(view, token)
        piece = "" if row["piece"] is None else f" {row['piece']!r}"
        cells = [row[name] for name in ("advantage_a", "advantage_b", "coefficient_a", "coefficient_b")]
        numbers = ["-" if cell is None else f"{cell:.4g}" for cell in cells]
        table.add_row(f"{row['group']}.{row['rollout']}", f"{row['place']}{escape(piece)}", *numbers)
    CONSOLE.print(table)
    CONSOLE.print("[dim]below 0 the token becomes likelier; -: it does not train[/]")
