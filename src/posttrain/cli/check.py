"""``posttrain check RECIPE.toml``: the invariants on the user's own model, as a table of numbers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from posttrain.assemble import assemble, prepare
from posttrain.checks.report import verdict
from posttrain.checks.run import run_checks
from posttrain.cli.screen import CONSOLE, check_line
from posttrain.config import read_recipe
from posttrain.models.threads import apply_threads, choose_threads


def run(
    recipe: Annotated[Path, typer.Argument(help="Recipe, a TOML file.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Changes, for example model.path=toy.")] = None,
) -> None:
    """Prove the invariants; exit code 3 if one does not hold."""
    settings = read_recipe(recipe, overrides or ())
    apply_threads(choose_threads(settings.run.threads))
    assembly = assemble(prepare(settings))
    for note in assembly.notes:
        CONSOLE.print(f"[dim]{escape(note)}[/]", soft_wrap=True)
    results = asyncio.run(run_checks(assembly.subject(), lambda result: CONSOLE.print(check_line(result))))
    CONSOLE.print(f"[bold]{verdict(results)}[/]")
    if any(result.status == "fail" for result in results):
        raise typer.Exit(3)
