"""A folder of weights is used only if its ``COMPLETE`` file says that every file in it is whole.

``COMPLETE`` is written last. It is JSON: for each file of the folder its size in bytes and its SHA-256. A folder
that a killed process left half written has none, and a file that was damaged later no longer matches it.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

__all__ = ["MARKER", "find_damage", "seal", "sync_folder", "sync_tree"]

MARKER = "COMPLETE"
"""Name of the file that marks a whole folder."""


def sync_folder(folder: Path) -> None:
    """Make the folder's list of names durable; does nothing where folders cannot be opened."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Make every file and folder below ``folder``, and itself, durable."""
    for here, _, names in os.walk(folder, topdown=False):
        for name in names:
            with open(Path(here, name), "rb") as stream:
                os.fsync(stream.fileno())
        sync_folder(Path(here))


def seal(folder: Path) -> None:
    """Write ``COMPLETE`` for what the folder holds now, durably."""
    files = {
        str(path.relative_to(folder).as_posix()): {"bytes": path.stat().st_size, "sha256": _digest(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MARKER
    }
    with open(folder / MARKER, "w", encoding="utf-8") as stream:
        json.dump({"files": files}, stream, indent=1)
        stream.flush()
        os.fsync(stream.fileno())
    sync_folder(folder)


def find_damage(folder: Path, *, digests: bool = True) -> str | None:
    """Return what is wrong with a sealed folder in a few words, or None if it is whole.

    Args:
        folder: the folder to look at.
        digests: read every file and compare its SHA-256; otherwise sizes only.
    """
    files = _read_marker(folder)
    if isinstance(files, str):
        return files
    for name, wanted in files.items():
        problem = _check_file(folder / name, name, wanted, digests=digests)
        if problem:
            return problem
    return None


def _read_marker(folder: Path) -> dict[str, dict[str, object]] | str:
    """Return the marker's table of files, or the sentence that says why there is none."""
    try:
        table = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"it has no {MARKER} file: writing it was interrupted"
    except (ValueError, OSError) as error:
        return f"its {MARKER} file cannot be read ({error})"
    files = table.get("files") if isinstance(table, dict) else None
    if not isinstance(files, dict) or not all(isinstance(entry, dict) for entry in files.values()):
        return f"its {MARKER} file is not the expected table"
    return files


def _check_file(path: Path, name: str, wanted: dict[str, object], *, digests: bool) -> str | None:
    if not path.is_file():
        return f"{name} is missing"
    size = path.stat().st_size
    if size != wanted.get("bytes"):
        return f"{name} has {size} bytes instead of {wanted.get('bytes')}"
    if digests and _digest(path) != wanted.get("sha256"):
        return f"{name} is damaged: its SHA-256 is not the one written"
    return None


def _digest(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
