"""Draws a measured learning curve as one line of text: what ``bench/curves/`` recorded, nothing else."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["curve_section", "read_curve", "spark"]

BARS = "▁▂▃▄▅▆▇█"
MEASURES = ("pass_rate", "reward/mean", "reward", "accuracy", "preference/accuracy", "loss", "teacher_kl")
"""What a curve may show, the first that a file has."""
HELD_OUT = "held_out_pass_at_1"
"""A held-out result in a row of its own."""
WIDTH = 60


def curve_section(name: str, folder: Path, names: Collection[str]) -> str:
    """The section of a page with every curve of an algorithm; empty if none was measured.

    A file belongs to the longest of ``names`` that its own name begins with: ``ppo_addition.jsonl`` is ppo's.
    """
    files = [file for file in sorted(folder.glob("*.jsonl")) if owner(file.stem, names) == name]
    lines = [line for file in files for line in curve_lines(file)]
    if not lines:
        return ""
    body = "\n".join(lines)
    return f"## Measured on the toy model\n\n```text\n{body}\n```\n\nFrom `bench/curves/`.\n"


def owner(stem: str, names: Collection[str]) -> str | None:
    """The longest name that a file's stem is, or begins with before a mark such as ``_`` or ``-``."""
    fitting = [name for name in names if stem == name or (stem.startswith(name) and not stem[len(name)].isalnum())]
    return max(fitting, key=len, default=None)


def curve_lines(file: Path) -> list[str]:
    """One file's curve with its first and last values, and its held-out results."""
    rows = read_curve(file)
    measure = next((m for m in MEASURES if any(m in row for row in rows)), None)
    lines = []
    if measure is not None:
        values = [float(row[measure]) for row in rows if measure in row]
        first, last = mean(values[:5]), mean(values[-5:])
        lines += [f"{file.stem:<28} {measure}, {len(values)} batches: {first:.3f} to {last:.3f}", f"  {spark(values)}"]
    return lines + [f"  held-out pass@1 {held_out(row)}" for row in rows if HELD_OUT in row]


def held_out(row: Mapping[str, Any]) -> str:
    """One held-out result with its interval, and whose it is."""
    interval = f" ({row['low']:.1%} to {row['high']:.1%})" if {"low", "high"} <= row.keys() else ""
    when = f" after {row['step']} batches" if row.get("step") is not None else ""
    who = f", {row['who']}" if "who" in row else ""
    return f"{row[HELD_OUT]:.1%}{interval}{when}{who}"


def read_curve(file: Path) -> list[Mapping[str, Any]]:
    """The rows of a curve file, a flat table per line; numbers may also stand under ``metrics``."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [{**row, **row.get("metrics", {})} for row in rows if isinstance(row, dict)]


def spark(values: Sequence[float], width: int = WIDTH) -> str:
    """Values as bars from their least to their largest, at most ``width`` of them, each the mean of its stretch."""
    count = min(len(values), width)
    bounds = [round(place * len(values) / count) for place in range(count + 1)]
    means = [mean(values[low:high]) for low, high in itertools.pairwise(bounds)]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(BARS[round((value - low) / span * (len(BARS) - 1))] for value in means)


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean of at least one value."""
    return sum(values) / len(values)
