"""What a person sees of a run: a live line on a terminal, a plain line a step elsewhere, and the closing tables."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from types import TracebackType

from rich.console import Console
from rich.console import Group as Stack
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from posttrain.assemble import Prepared
from posttrain.checks.report import CheckResult
from posttrain.evals.result import EvalResult
from posttrain.launch import Result, describe
from posttrain.types import Group

CONSOLE = Console(highlight=False)

SHOWN = (
    ("reward/mean", "reward", "{:.3f}"),
    ("pass_rate", "pass", "{:.0%}"),
    ("loss", "loss", "{:.4f}"),
    ("length/mean", "length", "{:.1f}"),
    ("entropy", "entropy", "{:.3f}"),
    ("kl_ref/k3", "KL", "{:.4f}"),
    ("grad_norm", "grad", "{:.2f}"),
    ("tokens_per_second/generate", "gen tok/s", "{:.0f}"),
    ("tokens_per_second/train", "train tok/s", "{:.0f}"),
)
BARS = "▁▂▃▄▅▆▇█"
MARKS = {"pass": "[green]✓[/]", "fail": "[bold red]✗[/]", "warn": "[yellow]![/]", "skip": "[dim]–[/]"}


class Screen:
    """Shows one run; use it in a ``with`` block so that the terminal is given back."""

    def __init__(self, title: str = "", console: Console = CONSOLE) -> None:
        self._console = console
        self._title = title
        self._live: Live | None = None
        self._total = self._step = self._first = 0
        self._station = ""
        self._metrics: Mapping[str, float] = {}
        self._curve: list[float] = []
        self._started = time.monotonic()
        self._printed = 0.0
        self._shown_sample = False

    def __enter__(self) -> Screen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def begin(self, first: int, total: int) -> None:
        """Start the display at batch ``first`` of ``total``."""
        self._first = self._step = first
        self._total = total
        self._started = time.monotonic()
        if self._console.is_terminal:
            self._live = Live(self._picture(), console=self._console, refresh_per_second=4, transient=True)
            self._live.start()

    def station(self, name: str) -> None:
        """Show which station of the step runs."""
        self._station = name
        self._refresh()

    def rollouts(self, done: int, total: int) -> None:
        """Show how far the step's rollouts are."""
        self._station = f"{self._station.partition(' ')[0] or 'generate'} {done}/{total}"
        self._refresh()

    def sample(self, group: Group) -> None:
        """Print the very first rollout in full: what the model sees and writes."""
        if self._shown_sample or not group.rollouts:
            return
        self._shown_sample = True
        rollout = group.rollouts[0]
        prompt = str(group.task.messages[-1].get("content", ""))
        self._print(
            f"[dim]first rollout:[/] {escape(_short(prompt))} [bold]→[/] {escape(_short(rollout.text))} "
            f"[dim]({_reward_text(rollout.reward)}, {rollout.sampled_count} tokens, {rollout.ending.value})[/]"
        )

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show a finished step."""
        self._step, self._metrics = step, metrics
        self._curve.append(metrics.get("reward/mean", metrics.get("loss", 0.0)))
        self._refresh()
        now = time.monotonic()
        if self._live is None and (step == self._total or now - self._printed > 2.0):
            self._printed = now
            self._console.print(
                f"step {step}/{self._total}  {self._numbers()}  left {_clock(self._left())}", soft_wrap=True
            )

    def note(self, text: str) -> None:
        """Print a line above the display."""
        self._print(f"[dim]{escape(text)}[/]")

    def check(self, result: CheckResult) -> None:
        """Print one invariant's verdict."""
        self._print(check_line(result))

    def end(self) -> None:
        """Give the terminal back."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print(self, markup: str) -> None:
        self._console.print(markup, soft_wrap=True)

    def _refresh(self) -> None:
        if self._live is not None:
            self._live.update(self._picture())

    def _picture(self) -> Stack:
        head = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=max(self._total, 1), completed=self._step, width=28)
        head.add_row(
            Text(self._title, style="bold"),
            bar,
            Text(f"{self._step}/{self._total}"),
            Text(f"left {_clock(self._left())}"),
            Text(self._station, style="dim"),
        )
        return Stack(head, Text(f"{sparkline(self._curve, 40)}  {self._numbers()}"))

    def _numbers(self) -> str:
        found = [(label, form, self._metrics[name]) for name, label, form in SHOWN if name in self._metrics]
        return "  ".join(f"{label} {form.format(value)}" for label, form, value in found)

    def _left(self) -> float:
        done = self._step - self._first
        return (time.monotonic() - self._started) / done * (self._total - self._step) if done else float("nan")


def sparkline(values: Sequence[float], width: int) -> str:
    """The last values as a row of bars between their own minimum and maximum; a gap where one is not finite."""
    shown = list(values)[-width:]
    if not shown:
        return ""
    finite = [value for value in shown if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] if math.isfinite(value) else " " for value in shown)


def check_line(result: CheckResult) -> str:
    """One invariant as a line of markup."""
    return (
        f"{MARKS[result.status]} {escape(result.name)}  [dim]{escape(result.measured)} "
        f"({escape(result.expected)}, {result.seconds:.1f} s)[/]"
    )


def show_plan(prepared: Prepared) -> None:
    """The resolved recipe, the batch table and the notes of a dry run."""
    table = Table("key", "value", title="resolved recipe", title_justify="left")
    for key, value in flat(prepared.recipe.model_dump(mode="json", exclude_none=True)):
        table.add_row(key, escape(str(value)))
    CONSOLE.print(table)
    batch = Table("per batch and in all", "number", title="batch table", title_justify="left")
    for name, number in describe(prepared).items():
        batch.add_row(name, f"{number:,}")
    CONSOLE.print(batch)
    for note in prepared.notes:
        CONSOLE.print(f"[dim]{escape(note)}[/]")


def flat(table: Mapping[str, object], prefix: str = "") -> list[tuple[str, object]]:
    """Nested sections as dotted keys, in order."""
    rows: list[tuple[str, object]] = []
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            rows += flat(value, f"{name}.")
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            for number, item in enumerate(value):
                rows += flat(item, f"{name}.{number}.")
        else:
            rows.append((name, value))
    return rows


def show_result(result: Result) -> None:
    """Where the run is, what it cost and what the held-out tasks say."""
    if result.evaluations:
        show_evaluations([(f"step {e.step}", e) for e in result.evaluations])
    for finding in result.findings:
        CONSOLE.print(f"[yellow]![/] {escape(str(finding.get('name')))}: {escape(str(finding.get('measured')))}")
    seconds = sum(record.seconds for record in result.steps)
    CONSOLE.print(
        f"{len(result.steps)} batches in {_clock(seconds)}; run directory [bold]{result.directory}[/]", soft_wrap=True
    )


def show_evaluations(rows: Sequence[tuple[str, EvalResult]]) -> None:
    """Several evaluations as one table, each pass@k with its 95 % interval over prompts, and the protocol below."""
    ks = sorted({k for _, result in rows for k in result.pass_at})
    table = Table()
    table.add_column("weights", min_width=10, overflow="fold")
    for name in (*(f"pass@{k}" for k in ks), "majority", "cut off", "length"):
        table.add_column(name, no_wrap=True)
    for label, result in rows:
        cells = [interval_text(result.pass_at[k]) if k in result.pass_at else "" for k in ks]
        majority = "" if result.majority is None else f"{result.majority.mean:.1%}"
        table.add_row(label, *cells, majority, f"{result.truncated_share:.1%}", f"{result.mean_length:.1f}")
    CONSOLE.print(table)
    protocols = {result.fingerprint.digest: result for _, result in rows}
    for digest, result in protocols.items():
        size = f"{len(result.prompts)} tasks x {result.fingerprint.samples} samples"
        CONSOLE.print(f"[dim]{size}, 95 % intervals over tasks, protocol {digest[:8]}[/]")
    if len(protocols) > 1:
        CONSOLE.print("[yellow]![/] these rows were measured by different protocols: do not compare them")


def interval_text(interval: object) -> str:
    """``44.1% (40.2–48.0)``."""
    mean, low, high = (getattr(interval, name) for name in ("mean", "low", "high"))
    return f"{mean:.1%} ({low * 100:.1f}–{high * 100:.1f})"


def _reward_text(reward: float | None) -> str:
    return "no reward" if reward is None else f"reward {reward:g}"


def _clock(seconds: float) -> str:
    if seconds != seconds:
        return "?"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _short(text: str, width: int = 160) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"
