"""Keeps the measured numbers (bench/results.json) and writes them down for people (bench/RESULTS.md)."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.compare import Comparison
from bench.workloads import ROWS, Row

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
REPORT = HERE / "RESULTS.md"

HEAD = """# Measured beside TRL

Written by `make bench` from `bench/results.json`; nothing here is typed in by hand. Both sides have the same weights,
prompts, lengths and group size, one update per step, float32, one thread, and take their steps in turn (A B A B), each
in a process of its own. A figure is the minimum of CPU seconds over the steps; memory is the peak above idle. TRL is
at its best settings on a CPU: float32, no gradient checkpointing, one micro-batch. The gradient is that of one batch
of the same completions on both sides: norm of the difference over the norm. Where completions end by themselves, CPU
seconds are per token times the mean number of tokens.
"""


def read_results(path: Path) -> dict[str, Any]:
    """What was kept; empty if nothing was."""
    if not path.exists():
        return {"rows": {}, "defaults": {}}
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def keep(
    results: Mapping[str, Any],
    row: Row,
    comparison: Mapping[str, Any],
    needed: Mapping[str, float],
    rates: Mapping[str, float],
    *,
    defaults: bool = False,
) -> dict[str, Any]:
    """The results with one row measured anew."""
    part = "defaults" if defaults else "rows"
    line = {
        **comparison,
        "ratio": comparison["peer"]["cpu"] / comparison["ours"]["cpu"],
        "memory_share": comparison["ours"]["memory"] / comparison["peer"]["memory"],
        "needed": dict(needed),
        "gemm": dict(rates),
        "when": time.strftime("%Y-%m-%d %H:%M"),
        "machine": machine(),
    }
    return {**results, part: {**results.get(part, {}), row.name: line}}


def machine() -> str:
    """Processor, cores and load in a few words."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ] or [platform.processor()]
    return f"{names[0]}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"


def summary(row: Row, found: Comparison) -> str:
    """One line for the screen."""
    gradient = "" if found.gradient is None else f", gradients apart {found.gradient:.1e}"
    parts = {name: round(spent, 3) for name, spent in found.ours.stations.items()}
    theirs = {name: round(spent, 3) for name, spent in found.peer.stations.items()}
    return (
        f"{row.name}: {found.ours.cpu:.3f} against {found.peer.cpu:.3f} CPU-s = {found.ratio:.2f}x (aim {row.aim:g}); "
        f"{found.ours.memory:.0f} against {found.peer.memory:.0f} MB = {found.memory_share:.2f}{gradient}\n"
        f"  ours {parts}\n  TRL  {theirs}"
    )


def write_report(results: Mapping[str, Any]) -> None:
    """Write both files."""
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    REPORT.write_text(report(results))


def report(results: Mapping[str, Any]) -> str:
    """The page."""
    rows = {row.name: row for row in ROWS}
    measured = [(rows[name], results["rows"][name]) for name in rows if name in results["rows"]]
    parts = [HEAD, comparison_table(measured), stations_table(measured)]
    if results.get("defaults"):
        parts.append(defaults_table(rows, results["defaults"]))
    parts += [results["extra"][name] for name in sorted(results.get("extra", {}))]
    parts.append(conditions(measured))
    return "\n".join(parts)


def comparison_table(measured: list[tuple[Row, Mapping[str, Any]]]) -> str:
    """Cost of a step on both sides."""
    lines = [
        "## Cost of a step",
        "",
        "| row | what | ours: CPU-s, MB | TRL: CPU-s, MB | ratio | aim | memory | gradients apart |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row, line in measured:
        ours, peer = line["ours"], line["peer"]
        gradient = "–" if line["gradient"] is None else f"{line['gradient']:.0e}"
        met = "" if line["ratio"] >= row.aim else " (missed)"
        lines.append(
            f"| {row.name} | {describe(row)} | {ours['cpu']:.2f}, {ours['memory']:.0f} | {peer['cpu']:.2f}, "
            f"{peer['memory']:.0f} | **{line['ratio']:.1f}×** | {row.aim:g}×{met} | "
            f"{line['memory_share']:.2f}{memory_aim(row, line)} | {gradient} |"
        )
    return "\n".join([*lines, ""])


def memory_aim(row: Row, line: Mapping[str, Any]) -> str:
    """The aim behind a share of memory, where there is one."""
    if row.memory_aim == 1:
        return ""
    return f" (aim {row.memory_aim:g}{'' if line['memory_share'] <= row.memory_aim else ', missed'})"


def describe(row: Row) -> str:
    """A row in words."""
    model = {"char1m": "1 M", "bpe10m": "9 M, 32k vocabulary"}[row.model]
    if row.trainer == "grpo":
        length = f"free up to {row.completion}" if row.free else str(row.completion)
        return f"GRPO, {model}, {row.count}×{row.group}, prompt {row.prompt}, completion {length}"
    what = {"sft": "demonstrations", "dpo": "pairs", "reward": "pairs"}[row.trainer]
    ragged = f"ragged, {row.completion} on average" if row.ragged else f"{row.completion}"
    return f"{row.trainer.upper()}, {model}, {row.count} {what}, prompt {row.prompt}, answer {ragged}"


def stations_table(measured: list[tuple[Row, Mapping[str, Any]]]) -> str:
    """Where our step's time goes, and how near each station is to the needed work at the machine's rate."""
    lines = [
        "## Share of the needed work",
        "",
        "Needed: the FLOPs that cannot be spared (`bench/needed.py`) at the rate of matrix products measured in the "
        "same run. Share: needed over spent, in CPU seconds of our cheapest step; a station without needed FLOPs has "
        "none. The head's gradient to the hidden state is formed in the forward, so a backward may need less than is "
        "counted for it (above 100%) and its forward more.",
        "",
        "| row | station | spent | needed | share |",
        "|---|---|---|---|---|",
    ]
    for row, line in measured:
        spent, needed = line["ours"]["stations"], line["needed"]
        for name, cpu in spent.items():
            share = f"{needed[name] / cpu:.0%}" if needed.get(name) and cpu > 0 else "–"
            lines.append(f"| {row.name} | {name} | {cpu:.3f} | {needed.get(name, 0.0):.3f} | {share} |")
        total = sum(needed.values())
        lines.append(
            f"| {row.name} | **all** | {line['ours']['cpu']:.3f} | {total:.3f} | {total / line['ours']['cpu']:.0%} |"
        )
    return "\n".join([*lines, ""])


def defaults_table(rows: Mapping[str, Row], measured: Mapping[str, Any]) -> str:
    """The same against TRL as it comes: bfloat16 and gradient checkpointing."""
    lines = [
        "## Against TRL's defaults (bfloat16 and gradient checkpointing)",
        "",
        "| row | ours: CPU-s, MB | TRL's defaults: CPU-s, MB | ratio |",
        "|---|---|---|---|",
    ]
    for name, line in measured.items():
        ours, peer = line["ours"], line["peer"]
        lines.append(
            f"| {rows[name].name} | {ours['cpu']:.2f}, {ours['memory']:.0f} | {peer['cpu']:.2f}, "
            f"{peer['memory']:.0f} | **{line['ratio']:.1f}×** |"
        )
    return "\n".join([*lines, ""])


def conditions(measured: list[tuple[Row, Mapping[str, Any]]]) -> str:
    """Versions, machine and rates of every row."""
    lines = ["## Conditions", "", "| row | when | machine | versions | GFLOP/s |", "|---|---|---|---|---|"]
    for row, line in measured:
        versions = ", ".join(f"{name} {number}" for name, number in sorted(line["versions"].items()))
        speed = ", ".join(f"{name} {value:.0f}" for name, value in line["gemm"].items())
        lines.append(f"| {row.name} | {line['when']} | {line['machine']} | {versions} | {speed} |")
    return "\n".join([*lines, ""])
