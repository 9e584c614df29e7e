"""A checkpoint is whole or it does not count: written aside, synced, renamed, then marked ``COMPLETE``.

``checkpoints/step-000120/`` holds a folder per writer (``model/``, ``learner/``, …) and ``state.json``. Reading takes
the newest one whose files have the sizes and SHA-256 that its ``COMPLETE`` file names, and says what it passed over.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.errors import RecordError
from posttrain.models.complete import MARKER, find_damage, seal, sync_folder, sync_tree
from posttrain.records.files import TEMPORARY, explained, is_disk_full, megabytes

__all__ = ["Checkpoint", "Search", "clean_leftovers", "cut_back", "newest_complete", "prune", "write_checkpoint"]

NAME = re.compile(r"step-(\d{6,})")
STATE = "state.json"
NO_ROOM = 1 << 20
"""Free bytes below which a failed write means a full disk, whatever the library that wrote made of it."""

Writer = Callable[[Path], None]
"""Writes its files into the folder it is given, which exists."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A whole checkpoint."""

    path: Path
    """Its folder."""
    step: int
    """Last step it contains."""
    state: Mapping[str, Any]
    """What the loop stored beside the writers' files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """What a search for a checkpoint found."""

    checkpoint: Checkpoint | None
    """The newest whole one, if there is any."""
    messages: tuple[str, ...] = ()
    """One sentence for each newer one that was passed over."""


def write_checkpoint(folder: Path, step: int, writers: Mapping[str, Writer], state: Mapping[str, Any]) -> Path:
    """Write a checkpoint; a kill at any moment leaves the earlier ones and never half of this one.

    Args:
        folder: the run's ``checkpoints`` folder.
        step: last step the checkpoint contains. A whole checkpoint of that step is kept and nothing is written.
        writers: by name, who fills the folder of that name, in order; ``.`` is the checkpoint's own folder.
        state: what JSON can hold, stored as ``state.json``.

    Returns:
        The checkpoint's folder.

    Raises:
        RecordError: the disk is full or broken; what was written is removed and earlier checkpoints are intact.
    """
    target = folder / f"step-{step:06d}"
    if find_damage(target) is None:
        return target
    text = json.dumps(dict(state), indent=1)
    aside: Path | None = None
    with explained("making the checkpoints folder", folder.parent):
        folder.mkdir(parents=True, exist_ok=True)
    room = _require_room(folder, step)
    try:
        aside = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=folder))
        _fill(aside, writers, text)
        if target.exists():
            _remove(target)
        aside.rename(target)
        sync_folder(folder)
        seal(target)
    except BaseException as error:
        full = is_disk_full(error) or (isinstance(error, Exception) and shutil.disk_usage(folder).free < NO_ROOM)
        for leftover in filter(None, (aside, target)):
            shutil.rmtree(leftover, ignore_errors=True)
        if full or isinstance(error, OSError):
            raise _failure(folder, step, error, room=room if full else None) from error
        raise
    return target


def newest_complete(folder: Path) -> Search:
    """Find the newest checkpoint that is whole, reading every file of it."""
    messages: list[str] = []
    for step, path in reversed(_checkpoints(folder)):
        damage = find_damage(path)
        if damage is None:
            try:
                state = json.loads((path / STATE).read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                damage = f"its {STATE} cannot be read ({error})"
            else:
                return Search(checkpoint=Checkpoint(path=path, step=step, state=state), messages=tuple(messages))
        messages.append(f"Checkpoint {path.name} is passed over: {damage}.")
    return Search(checkpoint=None, messages=tuple(messages))


def prune(folder: Path, keep: int) -> list[int]:
    """Remove all whole checkpoints but the newest ``keep``; return the steps that went.

    Raises:
        ValueError: ``keep`` is below one.
    """
    if keep < 1:
        raise ValueError(f"keep is {keep}; at least the newest checkpoint must stay")
    whole = [(step, path) for step, path in _checkpoints(folder) if find_damage(path, digests=False) is None]
    for _, path in whole[:-keep]:
        _remove(path)
    return [step for step, _ in whole[:-keep]]


def cut_back(folder: Path, step: int) -> list[int]:
    """Remove the checkpoints after ``step``, whole or not; return the steps that went."""
    later = [(number, path) for number, path in _checkpoints(folder) if number > step]
    for _, path in later:
        _remove(path)
    return [number for number, _ in later]


def clean_leftovers(folder: Path) -> list[str]:
    """Remove what a killed process left half written or half removed; return the names."""
    if not folder.is_dir():
        return []
    torn = list(folder.glob(f"{TEMPORARY}*"))
    torn += [path for _, path in _checkpoints(folder) if not (path / MARKER).exists()]
    for path in torn:
        shutil.rmtree(path, ignore_errors=True)
    return [path.name for path in torn]


def _fill(aside: Path, writers: Mapping[str, Writer], state: str) -> None:
    for name, write in writers.items():
        place = aside / name
        place.mkdir(parents=True, exist_ok=True)
        write(place)
    (aside / STATE).write_text(state, encoding="utf-8")
    sync_tree(aside)


def _remove(path: Path) -> None:
    """Take the name away at once, then the files: a kill in between leaves no half checkpoint under its name."""
    gone = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=path.parent))
    path.rename(gone / path.name)
    shutil.rmtree(gone, ignore_errors=True)


def _checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Return (step, folder) of everything called like a checkpoint, ascending."""
    children = folder.iterdir() if folder.is_dir() else ()
    found = [(NAME.fullmatch(path.name), path) for path in children if path.is_dir()]
    return sorted((int(match[1]), path) for match, path in found if match)


def _require_room(folder: Path, step: int) -> int:
    """Return the free bytes; refuse before the disk is filled, if by the newest checkpoint's size this cannot fit."""
    known = _checkpoints(folder)
    needed = _size(known[-1][1]) if known else 0
    room = shutil.disk_usage(folder).free
    if needed > room:
        raise _failure(folder, step, None, room=room)
    return room


def _failure(folder: Path, step: int, error: BaseException | None, *, room: int | None) -> RecordError:
    """Say which earlier checkpoint is intact and, if ``room`` bytes were not enough, what this one needs."""
    whole = [path for _, path in _checkpoints(folder) if find_damage(path, digests=False) is None]
    intact = f"The checkpoint {whole[-1].name} is intact." if whole else "There is no earlier checkpoint."
    if room is None:
        return RecordError(f"the checkpoint of step {step} could not be written into {folder}: {error}. {intact}")
    needs = f"about {megabytes(_size(whole[-1]))}" if whole else "more than that"
    return RecordError(
        f"the disk of {folder} is full: {megabytes(room)} were free and the checkpoint of step {step} needs {needs}. "
        f"{intact} Free space, then continue with --resume; run.keep_checkpoints=1 needs the least."
    )


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) if path.exists() else 0
