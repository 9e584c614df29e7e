"""A file with one JSON object per line, appended to, that survives a kill in the middle of a line."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from posttrain.errors import RecordError
from posttrain.records.files import explained, write_atomically

__all__ = ["JsonLines", "to_plain"]


class JsonLines:
    """Appends, reads and cuts back one file. Rows are valid JSON: a non-finite number must not be in them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one row and hand it to the system; a torn line that a killed process left is cut off before.

        Raises:
            RecordError: the disk is full or broken; the file then ends after its last whole row.
            ValueError: the row holds a non-finite number.
        """
        line = (json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
        with explained(f"writing {self.path.name}", self.path.parent), open(self.path, "a+b") as stream:
            whole = _whole_length(stream)
            stream.truncate(whole)
            try:
                stream.write(line)
                stream.flush()
            except OSError:
                os.truncate(self.path, whole)
                raise

    def read(self) -> list[dict[str, Any]]:
        """Return all whole rows; a torn last line is left out.

        Raises:
            RecordError: a line before the last is not a JSON object.
        """
        if not self.path.is_file():
            return []
        with explained(f"reading {self.path.name}", self.path.parent):
            lines = self.path.read_bytes().split(b"\n")
        rows: list[dict[str, Any]] = []
        for number, line in enumerate(lines[:-1], start=1):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise RecordError(f"{self.path}, line {number}: not JSON ({error}). Remove that line.") from error
            if not isinstance(row, dict):
                raise RecordError(f"{self.path}, line {number}: expected a JSON object. Remove that line.")
            rows.append(row)
        return rows

    def cut_back(self, step: int) -> int:
        """Keep the rows up to and including ``step`` (and those without a step), at once; return how many went."""
        rows = self.read()
        kept = [row for row in rows if not isinstance(row.get("step"), int) or row["step"] <= step]
        if self.path.is_file():
            text = "".join(json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n" for row in kept)
            with explained(f"cutting back {self.path.name}", self.path.parent):
                write_atomically(self.path, text.encode("utf-8", "backslashreplace"))
        return len(rows) - len(kept)


def to_plain(value: Any) -> Any:
    """Return the value as JSON can hold it: arrays as lists, non-finite numbers as None, the unknown as its text."""
    if isinstance(value, np.ndarray | np.generic):
        return to_plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): to_plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain(entry) for entry in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | bool | int):
        return value
    return str(value)


def _whole_length(stream: Any) -> int:
    """Return the file's length up to and including its last line break."""
    end = stream.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - 65536)
        stream.seek(start)
        found = stream.read(end - start).rfind(b"\n")
        if found >= 0:
            return int(start + found + 1)
        end = start
    return 0
