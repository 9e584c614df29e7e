"""``posttrain diff A B``: two algorithms, presets, recipes or runs, term by term and token by token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from posttrain.cli.screen import CONSOLE
from posttrain.compare.difference import Comparison, compare, token_json
from posttrain.compare.figure import draw, refuse_figure
from posttrain.compare.sides import Side, resolve
from posttrain.compare.stored import StoredBatch, packaged, run_step
from posttrain.errors import ConfigError

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
    if found.numbers is None:
        for reason in found.not_compared:
            CONSOLE.print(f"no numbers: {escape(reason)}", soft_wrap=True)
        return
    for note in (*found.batch.notes, *effect_notes(found)):
        CONSOLE.print(f"[dim]{escape(note)}[/]", soft_wrap=True)
    show_numbers(found)
    show_tokens(found)


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
    assert found.effects is not None
    pairs = zip(("A", "B"), found.effects, strict=True)
    return [f"{name}: {note}" for name, effect in pairs for note in effect.notes]


def show_numbers(found: Comparison) -> None:
    """Direction, size, and shares of tokens."""
    numbers = found.numbers
    assert numbers is not None
    cosine = "undefined: one gradient is zero" if numbers.cosine is None else f"{numbers.cosine:.4f}"
    CONSOLE.print(f"gradient cosine        [bold]{cosine}[/] over {numbers.tokens} tokens (1: the same direction)")
    if numbers.ratio:
        CONSOLE.print(
            f"learning-rate ratio    [bold]{numbers.ratio:.4g}[/]: B moves the log-probabilities so many times as far; "
            f"an SGD rate tuned for A is worth {1 / numbers.ratio:.3g} times as much in B",
            soft_wrap=True,
        )
        CONSOLE.print(
            "[dim]                       AdamW divides a constant factor out again: what stays is where the gradient "
            "clip begins, and the balance with a KL, an entropy bonus or weight decay[/]",
            soft_wrap=True,
        )
    shares = (
        ("pushed the opposite way", numbers.opposite),
        ("moved by A only", numbers.only_a),
        ("moved by B only", numbers.only_b),
        ("same way, size differs > 2x", numbers.resized),
    )
    for label, share in shares:
        CONSOLE.print(f"{label:<27} {share:7.1%} of tokens")


def show_tokens(found: Comparison) -> None:
    """The tokens whose share of the gradient differs most."""
    assert found.numbers is not None
    if not found.numbers.most_changed:
        return
    table = Table("rollout", "token", "advantage A", "B", "dL/dlogprob A", "B", title="tokens that change most")
    for token in found.numbers.most_changed:
        row = token_json(found, token)
        piece = "" if row["piece"] is None else f" {row['piece']!r}"
        cells = [row[name] for name in ("advantage_a", "advantage_b", "coefficient_a", "coefficient_b")]
        table.add_row(
            f"{row['group']}.{row['rollout']}", f"{row['place']}{escape(piece)}", *("-" if c is None else f"{c:.4g}" for c in cells)
        )
    table.title_justify = "left"
    CONSOLE.print(table)
    CONSOLE.print("[dim]below 0 the token becomes likelier; -: it does not train[/]")
