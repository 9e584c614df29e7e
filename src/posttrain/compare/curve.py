"""Draws a measured learning curve as one line of text: what ``bench/curves/NAME*.jsonl`` recorded, nothing else."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["curve_section", "read_curve", "spark"]

BARS = "▁▂▃▄▅▆▇█"
MEASURES = ("pass_rate", "reward/mean", "reward", "accuracy", "preference/accuracy", "loss", "kl_teacher")
"""What a curve may show, the first that a file has."""
WIDTH = 60


def curve_section(name: str, folder: Path) -> str:
    """The section of a page with every curve of an algorithm; empty if none was measured."""
    files = sorted([*folder.glob(f"{name}.jsonl"), *folder.glob(f"{name}[-@]*.jsonl")])
    lines = [line for file in files for line in curve_lines(file)]
    if not lines:
        return ""
    body = "\n".join(lines)
    return f"## Measured on the toy model\n\n```text\n{body}\n```\n\nFrom `bench/curves/`; seconds are not compared.\n"


def curve_lines(file: Path) -> list[str]:
    """One file's curve with its first and last value."""
    rows = read_curve(file)
    measure = next((m for m in MEASURES if any(m in row for row in rows)), None)
    if measure is None:
        return []
    values = [float(row[measure]) for row in rows if measure in row]
    first, last = mean(values[:5]), mean(values[-5:])
    return [f"{file.stem:<28} {measure}, {len(values)} points: {first:.3f} to {last:.3f}", f"  {spark(values)}"]


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
