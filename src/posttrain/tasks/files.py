"""Rows from files: JSON Lines, a JSON list, Parquet. Each row comes with the place it was read from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from posttrain.errors import DataError, did_you_mean

Placed = Iterator[tuple[str, Any]]
"""Pairs of a place for people ("tasks.jsonl, line 3") and the row there."""


def file_rows(path: str | Path) -> Placed:
    """Yield (place, row) of a .jsonl, .json or .parquet file; DataError if it cannot be read."""
    file = Path(path)
    readers = {".jsonl": _json_lines, ".ndjson": _json_lines, ".json": _json_list, ".parquet": _parquet}
    if file.is_dir():
        raise DataError(f"{file} is a folder; tasks.path takes a file. For a folder of data files use tasks.dataset.")
    if not file.is_file():
        near = (
            [str(other) for other in file.parent.glob("*") if other.suffix in readers] if file.parent.is_dir() else []
        )
        raise DataError(f"task file {file} does not exist.{did_you_mean(str(file), near)}")
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise DataError(f"{file}: cannot read '{file.suffix}' files. Give one of {', '.join(readers)}.")
    return reader(file)


def _json_lines(file: Path) -> Placed:
    """One JSON object per line; blank lines and a byte order mark are fine."""
    with file.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            place = f"{file}, line {number}"
            text = _decode(line, place).strip()
            if text:
                row = _parse(text, place)
                if not isinstance(row, dict):
                    raise DataError(f"{place}: expected a JSON object with columns; got {_kind(row)}: {text[:60]}")
                yield place, row


def _json_list(file: Path) -> Placed:
    """One list of objects (or of plain questions)."""
    rows = _parse(_decode(file.read_bytes(), str(file)), str(file), hint=" If each line is an object, name it .jsonl.")
    if not isinstance(rows, list):
        raise DataError(
            f"{file}: expected a JSON list of objects; got {_kind(rows)}. For one object per line use .jsonl."
        )
    for number, row in enumerate(rows, start=1):
        yield f"{file}, item {number}", row


def _parquet(file: Path) -> Placed:
    """A table with one task per row, read batch by batch."""
    try:
        with pyarrow.parquet.ParquetFile(file) as table:
            number = 0
            for batch in table.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{file}, row {number}", row
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError, OSError) as error:
        raise DataError(f"{file} is not a Parquet file that can be read: {error}") from error


def _decode(data: bytes, place: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{place}: not UTF-8 text (byte {error.start + 1} is 0x{data[error.start]:02x}). Save the file as UTF-8."
        ) from error


def _parse(text: str, place: str, hint: str = "") -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}, column {error.colno}"
        near = text[max(0, error.pos - 30) : error.pos + 10]
        raise DataError(f"{place}, {where}: not JSON ({error.msg}) near {near!r}.{hint}") from error
    except RecursionError as error:
        raise DataError(f"{place}: JSON nested too deeply to read") from error


def _kind(value: Any) -> str:
    names = {list: "a list", dict: "an object", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
