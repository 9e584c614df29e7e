"""``posttrain search MODEL_OR_RUN --judge …``: best-of-N or step-verifier beam search, with what it costs."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from posttrain.cli.eval import sections
from posttrain.cli.screen import CONSOLE, interval_text
from posttrain.config import validate
from posttrain.errors import ConfigError
from posttrain.evals.searched import Searched
from posttrain.evals.step_search import StepSearch
from posttrain.measure import search, source
from posttrain.records.json_lines import JsonLines


def run(
    model: Annotated[str, typer.Argument(help="Model folder, hub name, toy, smollm2, or a run directory.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="For example rollouts.max_new_tokens=64.")] = None,
    tasks: Annotated[
        str | None,
        typer.Option(help="File, dataset:NAME, or held-out problems of generator:NAME or reasoning_gym:NAME."),
    ] = None,
    reward: Annotated[str | None, typer.Option(help="Reward plug that decides what is right.")] = None,
    judge: Annotated[
        str | None, typer.Option(help="Reward plug, or {type = …, …}, that chooses; without: the reward itself.")
    ] = None,
    samples: Annotated[int, typer.Option("--best-of-n", "-n", min=1, help="Answers to choose from.")] = 8,
    beams: Annotated[int | None, typer.Option(min=1, help="Search step by step with so many beams instead.")] = None,
    expansions: Annotated[int, typer.Option(min=1, help="Continuations of each kept beam.")] = 4,
    delimiter: Annotated[str, typer.Option(help="Text that ends a step; \\n is a line break.")] = "\\n",
    max_steps: Annotated[int, typer.Option(min=1, help="Steps after which a beam counts as finished.")] = 16,
    aggregate: Annotated[str, typer.Option(help="Step scores to one: min, product, last, mean, log_odds.")] = "last",
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Append the result to this .jsonl file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Search, show what each way of choosing is worth, and what it took."""
    steps = None
    if beams is not None:
        table = {
            "beams": beams,
            "expansions": expansions,
            "delimiter": delimiter.replace("\\n", "\n"),
            "max_steps": max_steps,
            "aggregate": aggregate,
        }
        steps = validate(StepSearch, table, where="posttrain search")
    section, rollouts = sections(source(model), tasks, overrides or ())
    with Progress(console=CONSOLE, transient=True, disable=as_json) as bar:
        line = bar.add_task("tasks", total=None)
        result = search(
            model,
            tasks=section,
            reward=reward,
            judge=judge_part(judge),
            steps=steps,
            rollouts=rollouts,
            samples=samples,
            seed=seed,
            progress=lambda done, total: bar.update(line, completed=done, total=total),
        )
    if out is not None:
        JsonLines(out).append(result.to_json())
    if as_json:
        print(json.dumps(result.to_json()))
        return
    show(result)


def judge_part(text: str | None) -> str | dict[str, Any] | None:
    """A plug's name, or a whole part as an inline TOML table: ``{type = "length", start = 10, end = 20}``."""
    if text is None or not text.lstrip().startswith("{"):
        return text
    try:
        return dict(tomllib.loads(f"part = {text}")["part"])
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f'--judge {text!r} is no TOML table such as {{type = "exact"}}: {error}') from error


def show(result: Searched) -> None:
    """A table of ways to choose, the compute, the protocol and what a reader must know."""
    table = Table("chosen by", "right (95 %)", title=f"{result.method} of {escape(result.label)}", title_justify="left")
    for name, interval in result.numbers.items():
        table.add_row(name, interval_text(interval))
    CONSOLE.print(table)
    CONSOLE.print(f"cost: {result.cost_line()}", soft_wrap=True)
    how = ", ".join(f"{key} {value!r}" for key, value in result.settings.items() if key != "kl_bound")
    CONSOLE.print(f"[dim]protocol {result.fingerprint.digest[:16]}: {escape(how)}[/]", soft_wrap=True)
    for warning in result.warnings:
        CONSOLE.print(f"[yellow]![/] {escape(warning)}", soft_wrap=True)
