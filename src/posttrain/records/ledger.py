"""The ledger knows where each prompt of a run is, so that none is lost and none trains twice.

One row per position in the task order. A row moves forward only: issued, rolled, scored, then trained or dropped.
SQLite in write-ahead mode: a kill at any moment leaves the last committed state.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from posttrain.errors import RecordError

__all__ = ["Entry", "Ledger", "State"]


class State(StrEnum):
    """Where a prompt is."""

    ISSUED = "issued"
    """Given to the engine."""
    ROLLED = "rolled"
    """Its rollouts are finished."""
    SCORED = "scored"
    """They have their rewards."""
    DROPPED = "dropped"
    """Left out for good: filtered, or scoring it failed."""
    TRAINED = "trained"
    """An optimizer step has used it."""


ORDER = (State.ISSUED, State.ROLLED, State.SCORED)
FINAL = (State.DROPPED, State.TRAINED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One prompt's row."""

    position: int
    """Place in the run's task order."""
    task_id: str
    """The task there."""
    epoch: int
    """Pass over the tasks, from 0."""
    state: State
    """Where it is."""
    step: int | None
    """Step that trained or dropped it."""
    version: int | None
    """Version of the weights when it was issued."""


class Ledger:
    """The ledger of one run; one process writes it."""

    def __init__(self, path: Path) -> None:
        """Open or create the file.

        Raises:
            RecordError: it is not a ledger, or cannot be written.
        """
        self.path = path
        with _explained(path):
            self._connection = sqlite3.connect(path, isolation_level=None)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=NORMAL")
            states = ", ".join(f"'{state}'" for state in State)
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS prompts (position INTEGER PRIMARY KEY, task_id TEXT NOT NULL, "
                f"epoch INTEGER NOT NULL, state TEXT NOT NULL CHECK (state IN ({states})), step INTEGER, "
                "version INTEGER)"
            )

    def issue(self, position: int, task_id: str, *, epoch: int, version: int) -> None:
        """Enter a prompt that is given to the engine; after a resume the same prompt may be issued again.

        Raises:
            RecordError: the position is trained or dropped already, or belongs to another task.
        """
        with self._transaction():
            row = self._row(position)
            if row is not None and (row.state in FINAL or row.task_id != task_id):
                raise RecordError(
                    f"{self.path}: position {position} is {row.state} with task '{row.task_id}'; "
                    f"it cannot be issued with task '{task_id}'. Do the tasks or the seed differ from the first start?"
                )
            self._connection.execute(
                "INSERT OR REPLACE INTO prompts VALUES (?, ?, ?, ?, NULL, ?)",
                (position, task_id, epoch, State.ISSUED, version),
            )

    def mark(self, positions: Iterable[int], state: State, *, step: int | None = None) -> None:
        """Move prompts forward, all or none.

        Args:
            positions: places in the task order.
            state: where they are now.
            step: the optimizer step; needed for trained and dropped.

        Raises:
            RecordError: a prompt was never issued, is trained or dropped already, or would move backward.
        """
        if (state in FINAL) != (step is not None):
            raise ValueError(f"state {state} {'needs' if state in FINAL else 'has no'} step")
        with self._transaction():
            for position in positions:
                self._check_forward(position, state)
                self._connection.execute(
                    "UPDATE prompts SET state = ?, step = ? WHERE position = ?", (state, step, position)
                )

    def untrained(self) -> list[Entry]:
        """Return the prompts that are neither trained nor dropped, by position: a resumed run issues them again."""
        return self._entries("WHERE state NOT IN (?, ?) ORDER BY position", FINAL)

    def entries(self) -> list[Entry]:
        """Return all rows by position."""
        return self._entries("ORDER BY position", ())

    def counts(self) -> dict[State, int]:
        """Return the number of prompts in each state."""
        with _explained(self.path):
            rows = dict(self._connection.execute("SELECT state, COUNT(*) FROM prompts GROUP BY state").fetchall())
        return {state: rows.get(state.value, 0) for state in State}

    def cut_back(self, step: int, next_position: int | None = None) -> int:
        """Return to the checkpoint of ``step``: what it had not trained or dropped is open again.

        Args:
            step: last step the checkpoint contains.
            next_position: first position the checkpoint's task order has not issued; rows from there on are removed.

        Returns:
            How many rows were reopened or removed.
        """
        with self._transaction():
            removed = 0
            if next_position is not None:
                removed = self._connection.execute("DELETE FROM prompts WHERE position >= ?", (next_position,)).rowcount
            reopened = self._connection.execute(
                "UPDATE prompts SET state = ?, step = NULL WHERE (state IN (?, ?) AND step > ?) OR state IN (?, ?)",
                (State.ISSUED, *FINAL, step, State.ROLLED, State.SCORED),
            ).rowcount
        return removed + reopened

    def flush(self) -> None:
        """Make everything committed so far durable against a power loss; call it before a checkpoint is written."""
        with _explained(self.path):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _check_forward(self, position: int, state: State) -> None:
        row = self._row(position)
        if row is None:
            raise RecordError(f"{self.path}: position {position} was never issued, so it cannot be {state}")
        if row.state in FINAL:
            raise RecordError(
                f"{self.path}: position {position} was {row.state} at step {row.step} already; "
                f"it cannot be {state} again"
            )
        if state in ORDER and ORDER.index(state) < ORDER.index(row.state):
            raise RecordError(f"{self.path}: position {position} is {row.state}; it cannot go back to {state}")

    def _row(self, position: int) -> Entry | None:
        return next(iter(self._entries("WHERE position = ?", (position,))), None)

    def _entries(self, condition: str, values: Sequence[object]) -> list[Entry]:
        with _explained(self.path):
            rows = self._connection.execute(
                f"SELECT position, task_id, epoch, state, step, version FROM prompts {condition}", tuple(values)
            ).fetchall()
        return [
            Entry(position=p, task_id=task, epoch=epoch, state=State(state), step=step, version=version)
            for p, task, epoch, state, step, version in rows
        ]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All of the statements inside, or none."""
        with _explained(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise RecordError(
            f"the ledger {path} cannot be used: {error}. Free disk space or close the other program that has it open; "
            "if it is damaged, restore it from a copy or start a new run."
        ) from error
