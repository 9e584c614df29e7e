"""The run directory: the one folder a run is resumed from, compared by and shared as.

``config.toml`` · ``environment.json`` · ``metrics.jsonl`` · ``rollouts/`` · ``evals.jsonl`` · ``scores.jsonl`` (of
score heads) · ``findings.jsonl`` ·
``ledger.sqlite`` · ``checkpoints/``. Nothing is pickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

from posttrain import config
from posttrain.errors import ConfigError, RecordError
from posttrain.records import checkpoints, lock
from posttrain.records.files import TEMPORARY, explained, write_atomically
from posttrain.records.json_lines import JsonLines, to_plain
from posttrain.records.ledger import Ledger
from posttrain.records.metrics import MetricsLog
from posttrain.records.rollout_store import RolloutStore

__all__ = ["RunDirectory", "fresh_path", "refuse_used"]

CONFIG, ENVIRONMENT = "config.toml", "environment.json"
FOLDERS = ("checkpoints", "rollouts")


class RunDirectory:
    """A run on disk: make one with ``create`` or ``open``, and use it in a ``with`` block to give its lock back."""

    def __init__(self, path: Path, held: lock.RunLock | None) -> None:
        self.path = path
        self._lock = held
        self.metrics = MetricsLog(path / "metrics.jsonl")
        self.evals = JsonLines(path / "evals.jsonl")
        self.scores = JsonLines(path / "scores.jsonl")
        self.findings = JsonLines(path / "findings.jsonl")
        self.rollouts = RolloutStore(path / "rollouts")
        self.checkpoints = path / "checkpoints"

    @classmethod
    def create(cls, path: str | Path, recipe: config.Recipe, environment: Mapping[str, Any]) -> RunDirectory:
        """Make a new run directory and hold it for writing.

        Args:
            path: a folder that is absent or empty, or that a start killed before ``config.toml`` left behind.
            recipe: the resolved recipe.
            environment: what ``environment.describe_environment`` returned.

        Raises:
            RecordError: there is something at the path already, or it cannot be written.
        """
        folder = Path(path).expanduser()
        refuse_used(folder)
        with explained(f"creating {folder}", _existing(folder)):
            folder.mkdir(parents=True, exist_ok=True)
        held = lock.RunLock(folder)
        try:
            refuse_used(folder)
            with explained(f"creating {folder}", folder):
                for name in FOLDERS:
                    (folder / name).mkdir(exist_ok=True)
                _write_json(folder / ENVIRONMENT, {**environment, "resumes": []})
                _write_config(folder, recipe)
        except BaseException:
            held.release()
            raise
        return cls(folder, held)

    @classmethod
    def open(cls, path: str | Path, *, write: bool = True) -> RunDirectory:
        """Open a run directory.

        Args:
            path: the run's folder.
            write: hold it for writing and remove what a killed process left half written.

        Raises:
            RecordError: it is no run directory, or a living process writes it.
        """
        folder = Path(path).expanduser()
        if not (folder / CONFIG).is_file():
            what = "has no config.toml, so it is not a run directory" if folder.is_dir() else "does not exist"
            if _half_made(folder):
                what = "was stopped before it began: start it again with its recipe"
            raise RecordError(
                f"run {folder} {what}. Give the folder that `posttrain train` printed.{_siblings(folder)}"
            )
        run = cls(folder, lock.RunLock(folder) if write else None)
        if write:
            checkpoints.clean_leftovers(run.checkpoints)
        return run

    @cached_property
    def recipe(self) -> config.Recipe:
        """The resolved recipe of the run.

        Raises:
            RecordError: config.toml is damaged.
        """
        try:
            return config.read_recipe(self.path / CONFIG)
        except ConfigError as error:
            raise RecordError(f"the run's own config cannot be read: {error}") from error

    @property
    def environment(self) -> dict[str, Any]:
        """What the run started on, and ``resumes``: what it was continued on.

        Raises:
            RecordError: environment.json is damaged.
        """
        try:
            table = json.loads((self.path / ENVIRONMENT).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RecordError(f"{self.path / ENVIRONMENT} cannot be read: {error}") from error
        if not isinstance(table, dict):
            raise RecordError(f"{self.path / ENVIRONMENT} is not a JSON object")
        return table

    @cached_property
    def ledger(self) -> Ledger:
        """Where each prompt is; opened when first asked for."""
        return Ledger(self.path / "ledger.sqlite")

    def record_recipe(self, recipe: config.Recipe) -> None:
        """Replace ``config.toml`` at once by the recipe that the run goes on with, for example with more steps."""
        with explained("recording the recipe", self.path):
            _write_config(self.path, recipe)
        self.__dict__.pop("recipe", None)

    def note_resume(self, environment: Mapping[str, Any]) -> None:
        """Add the environment a resumed run continues on."""
        table = self.environment
        with explained("noting the resume", self.path):
            _write_json(self.path / ENVIRONMENT, {**table, "resumes": [*table.get("resumes", []), dict(environment)]})

    def cut_back(self, step: int, next_position: int | None = None) -> None:
        """Remove from every record what came after the checkpoint of ``step``.

        Args:
            step: last step the checkpoint contains; 0 for the very beginning.
            next_position: first task position that the checkpoint's order had not issued.
        """
        for log in (self.metrics, self.evals, self.scores, self.findings, self.rollouts):
            log.cut_back(step)
        self.ledger.cut_back(step, next_position)
        with explained("cutting back the checkpoints", self.path):
            checkpoints.cut_back(self.checkpoints, step)

    def close(self) -> None:
        """Close the ledger and give the lock back; may be called twice."""
        ledger = self.__dict__.pop("ledger", None)
        if ledger is not None:
            ledger.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def fresh_path(name: str, root: str | Path = "runs") -> Path:
    """Return the first of root/NAME, root/NAME-2, … that no run uses."""
    number, path = 1, Path(root) / name
    while _content(path):
        number += 1
        path = Path(root) / f"{name}-{number}"
    return path


def _content(folder: Path) -> list[str]:
    """Return the names in the folder beside what a start that came to nothing left; the path itself if it is a file."""
    if not folder.exists() or _half_made(folder):
        return []
    if not folder.is_dir():
        return [folder.name]
    return sorted(child.name for child in folder.iterdir() if child.name != lock.NAME)


def _half_made(folder: Path) -> bool:
    """True if a process began to make a run here and died before ``config.toml``, the last of its files."""
    left = {*FOLDERS, ENVIRONMENT, f"{TEMPORARY}{ENVIRONMENT}", f"{TEMPORARY}{CONFIG}", lock.NAME}
    if not (folder / lock.NAME).is_file() or not {child.name for child in folder.iterdir()} <= left:
        return False
    return not any(True for name in FOLDERS if (folder / name).is_dir() for _ in (folder / name).iterdir())


def refuse_used(folder: Path) -> None:
    """Raise RecordError if the folder cannot become a new run: it holds one already, or something else."""
    names = _content(folder)
    if not names:
        return
    if folder.is_dir() and CONFIG in names:
        raise RecordError(
            f"{folder} holds a run already. Continue it with --resume {folder}, or choose another place, "
            f"for example run.directory={fresh_path(folder.name, folder.parent)}"
        )
    what = f"is not empty ({', '.join(names[:5])})" if folder.is_dir() else "is a file"
    raise RecordError(f"{folder} {what}; a new run needs an empty or absent folder. Choose another run.directory.")


def _existing(folder: Path) -> Path:
    """Return the nearest folder above that exists."""
    return next(parent for parent in folder.absolute().parents if parent.is_dir())


def _siblings(folder: Path) -> str:
    """Name the runs that lie beside a path that is none."""
    if not folder.parent.is_dir():
        return ""
    runs = sorted(child.name for child in folder.parent.iterdir() if (child / CONFIG).is_file())
    return f" Runs in {folder.parent}: {', '.join(runs[:8])}." if runs else ""


def _write_config(folder: Path, recipe: config.Recipe) -> None:
    config.write_recipe(recipe, folder / f"{TEMPORARY}{CONFIG}")
    (folder / f"{TEMPORARY}{CONFIG}").replace(folder / CONFIG)


def _write_json(path: Path, table: Mapping[str, Any]) -> None:
    write_atomically(path, (json.dumps(to_plain(table), indent=1) + "\n").encode("utf-8"))
