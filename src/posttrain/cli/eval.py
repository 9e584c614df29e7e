"""``posttrain eval MODEL_OR_RUN --tasks … -k 1,4,8``: pass@k with intervals and the protocol's fingerprint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from posttrain.cli.screen import CONSOLE, interval_text, show_evaluations
from posttrain.config import Rollouts, Tasks, apply_override, validate
from posttrain.errors import ConfigError, RecordError
from posttrain.evals.record import append_result, compare
from posttrain.evals.result import EvalResult
from posttrain.measure import evaluate, source


def run(
    model: Annotated[str, typer.Argument(help="Model folder, hub name, toy, smollm2, or a run directory.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="For example rollouts.max_new_tokens=64.")] = None,
    tasks: Annotated[str | None, typer.Option(help="Task file, or generator:NAME, or reasoning_gym:NAME.")] = None,
    reward: Annotated[str | None, typer.Option(help="Reward plug that decides what is right.")] = None,
    k: Annotated[str, typer.Option("-k", help="Which pass@k, for example 1,4,8.")] = "1",
    samples: Annotated[int | None, typer.Option(help="Completions per task; the largest k if not given.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Append the result to this .jsonl file.")] = None,
    against: Annotated[Path | None, typer.Option(help="Compare with a result: a .json or .jsonl of --out.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Measure, show, and compare."""
    ks = parse_ks(k)
    before = read_result(against) if against is not None else None
    table: dict[str, dict[str, object]] = {"tasks": task_section(tasks), "rollouts": {}}
    for override in overrides or ():
        apply_override(table, override)
    offered = source(model)
    rollouts = offered.rollouts or Rollouts()
    if table["rollouts"]:
        rollouts = validate(Rollouts, rollouts.model_dump() | table["rollouts"], where="rollouts")
    with Progress(console=CONSOLE, transient=True, disable=as_json) as bar:
        line = bar.add_task("rollouts", total=None)
        result = evaluate(
            model,
            tasks=validate(Tasks, table["tasks"], where="tasks") if table["tasks"] else None,
            rewards=reward,
            rollouts=rollouts,
            samples=samples or max(ks),
            k=ks,
            seed=seed,
            progress=lambda done, total: bar.update(line, completed=done, total=total),
        )
    if out is not None:
        append_result(out, result)
    if as_json:
        print(json.dumps(result.to_json()))
        return
    show_evaluations([(result.label, result)])
    show_protocol(result)
    if before is not None:
        show_comparison(before, result)


def parse_ks(text: str) -> tuple[int, ...]:
    """``1,4,8`` to numbers; raises ConfigError."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isdigit() and int(word) for word in words):
        raise ConfigError(f"-k takes whole numbers above 0 with commas, for example 1,4,8; got {text!r}")
    return tuple(sorted({int(word) for word in words}))


def task_section(text: str | None) -> dict[str, object]:
    """A task file, ``generator:NAME`` or ``reasoning_gym:NAME`` as a tasks section."""
    if text is None:
        return {}
    kind, separator, name = text.partition(":")
    if separator and kind in ("generator", "reasoning_gym", "dataset"):
        return {kind: name}
    return {"path": text}


def show_protocol(result: EvalResult) -> None:
    """The fingerprint in full, and what a reader must know."""
    protocol = result.fingerprint
    sampling = ", ".join(f"{key} {value}" for key, value in protocol.sampling.items() if value not in ((), [], 0, 1.0))
    CONSOLE.print(
        f"[dim]protocol {protocol.digest[:16]}: template {protocol.template_hash[:8]}, "
        f"tasks {protocol.tasks_digest[:8]} ({protocol.task_count}), verifier {protocol.verifier[:8]}, "
        f"{protocol.samples} samples, {sampling}, posttrain {protocol.version}[/]",
        soft_wrap=True,
    )
    for warning in result.warnings:
        CONSOLE.print(f"[yellow]![/] {warning}", soft_wrap=True)


def read_result(path: Path) -> EvalResult:
    """The last result of a file."""
    try:
        lines = path.read_text(encoding="utf-8").strip().splitlines()
        return EvalResult.from_json(json.loads(lines[-1]))
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise RecordError(
            f"{path} holds no evaluation result: {error}. Make one with posttrain eval … --out FILE"
        ) from error


def show_comparison(before: EvalResult, after: EvalResult) -> None:
    """Differences on the shared prompts, after everything that makes them not comparable."""
    found = compare(before, after)
    for warning in found.warnings:
        CONSOLE.print(f"[yellow]![/] {warning}", soft_wrap=True)
    for name, difference in found.differences.items():
        CONSOLE.print(f"{name}: change {interval_text(difference)} on {found.shared_prompts} shared tasks")
