"""``posttrain eval MODEL_OR_RUN --tasks … -k 1,4,8``: pass@k with intervals and the protocol's fingerprint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import Progress

from posttrain.cli.screen import CONSOLE, interval_text, show_evaluations
from posttrain.config import Rollouts, Tasks, apply_override, plain, validate
from posttrain.errors import ConfigError, RecordError, did_you_mean
from posttrain.evals.record import append_result, compare
from posttrain.evals.result import EvalResult
from posttrain.measure import Source, evaluate, source
from posttrain.records.json_lines import to_plain


def run(
    model: Annotated[str, typer.Argument(help="Model folder, hub name, toy, smollm2, or a run directory.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="For example rollouts.max_new_tokens=64.")] = None,
    tasks: Annotated[
        str | None,
        typer.Option(help="File, dataset:NAME, or held-out problems of generator:NAME or reasoning_gym:NAME."),
    ] = None,
    reward: Annotated[str | None, typer.Option(help="Reward plug that decides what is right.")] = None,
    k: Annotated[str, typer.Option("-k", help="Which pass@k, for example 1,4,8.")] = "1",
    samples: Annotated[int | None, typer.Option(min=1, help="Completions per task; largest k if not given.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Append the result to this .jsonl file.")] = None,
    against: Annotated[Path | None, typer.Option(help="Compare with a result: a .json or .jsonl of --out.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Measure, show, and compare."""
    ks = parse_ks(k)
    before = read_result(against) if against is not None else None
    section, rollouts = sections(source(model), tasks, overrides or ())
    with Progress(console=CONSOLE, transient=True, disable=as_json) as bar:
        line = bar.add_task("rollouts", total=None)
        result = evaluate(
            model,
            tasks=section,
            reward=reward,
            rollouts=rollouts,
            samples=samples or max(ks),
            k=ks,
            seed=seed,
            progress=lambda done, total: bar.update(line, completed=done, total=total),
        )
    if out is not None:
        append_result(out, result)
    if as_json:
        print(json.dumps(as_table(result, before)))
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


def sections(offered: Source, tasks: str | None, overrides: Sequence[str]) -> tuple[Tasks | None, Rollouts]:
    """Tasks and sampling: what the run offers, replaced by --tasks, changed by overrides; None: as offered."""
    named = task_section(tasks) or (plain(offered.tasks) if offered.tasks is not None else {})
    table: dict[str, Any] = {"tasks": dict(named), "rollouts": plain(offered.rollouts or Rollouts())}
    for override in overrides:
        apply_override(table, override)
    unknown = [name for name in table if name not in ("tasks", "rollouts")]
    if unknown:
        hint = did_you_mean(unknown[0], ("tasks", "rollouts"))
        raise ConfigError(f"posttrain eval changes only tasks and rollouts, not '{unknown[0]}'.{hint}")
    given = table["tasks"] if tasks is not None or table["tasks"] != named else None
    section = validate(Tasks, given, where="tasks") if given else None
    return section, validate(Rollouts, table["rollouts"], where="rollouts")


def task_section(text: str | None) -> dict[str, object]:
    """A task file, data set, ``generator:NAME`` or ``reasoning_gym:NAME`` (held-out problems) as a tasks section."""
    if text is None:
        return {}
    kind, separator, name = text.partition(":")
    if separator and kind in ("generator", "reasoning_gym"):
        return {kind: name, "split": "test"}
    return {"dataset": name} if separator and kind == "dataset" else {"path": text}


def show_protocol(result: EvalResult) -> None:
    """The fingerprint in full, and what a reader must know."""
    protocol = result.fingerprint
    sampling = ", ".join(f"{key} {value}" for key, value in protocol.sampling.items() if value not in ((), [], 0, 1.0))
    CONSOLE.print(
        f"[dim]protocol {protocol.digest[:16]}: template {protocol.template_hash[:8]}, "
        f"tasks {protocol.tasks_digest[:8]} ({protocol.task_count}), verifier {protocol.verifier[:8]}, "
        f"{protocol.samples} samples, {escape(sampling)}, posttrain {protocol.version}[/]",
        soft_wrap=True,
    )
    for warning in result.warnings:
        CONSOLE.print(f"[yellow]![/] {escape(warning)}", soft_wrap=True)


def read_result(path: Path) -> EvalResult:
    """The last result of a file."""
    try:
        lines = path.read_text(encoding="utf-8").strip().splitlines()
        return EvalResult.from_json(json.loads(lines[-1]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise RecordError(
            f"{path} holds no evaluation result: {error}. Make one with posttrain eval … --out FILE"
        ) from error


def as_table(result: EvalResult, before: EvalResult | None) -> dict[str, Any]:
    """The result for --json, with the comparison under its own key if one was asked for."""
    table = result.to_json()
    if before is None:
        return table
    found = compare(before, result)
    differences = {
        name: {"mean": number.mean, "low": number.low, "high": number.high}
        for name, number in found.differences.items()
    }
    comparison = {"differences": differences, "shared_prompts": found.shared_prompts, "warnings": found.warnings}
    return table | {"comparison": to_plain(comparison)}


def show_comparison(before: EvalResult, after: EvalResult) -> None:
    """Differences on the shared prompts, after everything that makes them not comparable."""
    found = compare(before, after)
    for warning in found.warnings:
        CONSOLE.print(f"[yellow]![/] {escape(warning)}", soft_wrap=True)
    for name, difference in found.differences.items():
        CONSOLE.print(f"{name}: change {interval_text(difference)} on {found.shared_prompts} shared tasks")
