"""``posttrain train RECIPE.toml [key=value …]``: check, train, evaluate; or ``--resume RUN``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from posttrain import launch
from posttrain.assemble import prepare
from posttrain.cli.screen import Screen, show_plan, show_result
from posttrain.config import read_recipe
from posttrain.errors import ConfigError


def run(
    recipe: Annotated[Path | None, typer.Argument(help="Recipe, a TOML file.")] = None,
    overrides: Annotated[list[str] | None, typer.Argument(help="Changes, for example run.steps=5.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved recipe and batch table, then stop.")
    ] = False,
    resume: Annotated[Path | None, typer.Option(help="Continue this run from its newest checkpoint.")] = None,
    steps: Annotated[int | None, typer.Option(help="With --resume: train up to so many batches.")] = None,
    check: Annotated[bool, typer.Option(help="Prove the invariants before the first step.")] = True,
) -> None:
    """Run or continue a recipe."""
    if resume is not None:
        if recipe is not None:
            raise ConfigError("give either a recipe or --resume RUN: a resumed run uses its own recorded recipe")
        with Screen() as screen:
            result = launch.resume(resume, progress=screen, steps=steps)
        show_result(result)
        return
    if recipe is None:
        raise ConfigError("give a recipe, for example: posttrain train recipes/toy_grpo.toml; or --resume RUN")
    settings = read_recipe(recipe, overrides or ())
    if dry_run:
        show_plan(prepare(settings))
        return
    with Screen() as screen:
        result = launch.launch(settings, progress=screen, check=check, on_check=screen.check)
    show_result(result)
