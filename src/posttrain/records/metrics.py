"""The numbers of each optimizer step, one line of ``metrics.jsonl`` per step.

A line is flat, so that pandas and DuckDB read it as columns: ``step``, ``version``, ``seconds``, then each metric by
its name in ``names.py``; ``texts`` holds what is not a number. A number that is not finite is null in its column, and
``nonfinite`` says what it was: the file stays valid JSON and nothing is lost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posttrain.errors import RecordError
from posttrain.records.json_lines import JsonLines
from posttrain.records.names import check_names

__all__ = ["MetricsLog", "StepRecord"]

RESERVED = ("step", "version", "seconds", "texts", "nonfinite")


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """What one optimizer step did."""

    step: int
    """Number of the step, from 1."""
    version: int
    """Version of the weights after it."""
    seconds: float
    """Wall time of the whole step."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers by their name in ``names.NAMES``."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Remarks by name, for example why a step was skipped."""


class MetricsLog:
    """Appends and reads ``metrics.jsonl``."""

    def __init__(self, path: Path) -> None:
        self._lines = JsonLines(path)

    def append(self, record: StepRecord) -> None:
        """Write one step and hand it to the system.

        Raises:
            RecordError: a metric's name is not in the table, or the disk is full.
        """
        check_names(record.metrics)
        values = {name: float(value) for name, value in record.metrics.items()}
        row: dict[str, Any] = {"step": record.step, "version": record.version, "seconds": float(record.seconds)}
        row |= {name: value if math.isfinite(value) else None for name, value in values.items()}
        strange = {name: str(value) for name, value in values.items() if not math.isfinite(value)}
        if strange:
            row["nonfinite"] = strange
        if record.texts:
            row["texts"] = dict(record.texts)
        self._lines.append(row)

    def read(self) -> list[StepRecord]:
        """Return all whole records in order; a torn last line is left out.

        Raises:
            RecordError: a line before the last is no record.
        """
        return [_to_record(row, self._lines.path, number) for number, row in enumerate(self._lines.read(), start=1)]

    def cut_back(self, step: int) -> int:
        """Remove the records after ``step`` at once; return how many went."""
        return self._lines.cut_back(step)


def _to_record(row: Mapping[str, Any], path: Path, number: int) -> StepRecord:
    strange = row.get("nonfinite", {})
    metrics = {name: float(strange.get(name, "nan") if value is None else value) for name, value in _numbers(row)}
    try:
        return StepRecord(
            step=row["step"],
            version=row["version"],
            seconds=row["seconds"],
            metrics=metrics,
            texts=row.get("texts", {}),
        )
    except KeyError as error:
        raise RecordError(f"{path}, line {number}: a step record needs {error}; it has {', '.join(row)}") from error


def _numbers(row: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in row.items() if name not in RESERVED]
