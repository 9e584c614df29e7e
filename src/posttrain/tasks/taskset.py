"""A frozen sequence of tasks with a name, a digest of what it holds and a count of what was left out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from types import MappingProxyType
from typing import overload

from posttrain.errors import DataError
from posttrain.types import Task


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSet:
    """Tasks in source order; never empty, ids unique."""

    tasks: tuple[Task, ...]
    """The tasks."""
    name: str
    """Where they came from, for people."""
    skipped: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """How many tasks were left out, by reason."""
    digest: str = field(init=False)
    """sha256 hex over ids, messages, answers and candidates in order: equal digests mean the same tasks."""

    def __post_init__(self) -> None:
        if not self.tasks:
            reasons = ", ".join(f"{count} {reason}" for reason, count in self.skipped.items())
            left_out = f" (left out: {reasons})" if reasons else ""
            raise DataError(f"{self.name}: no tasks{left_out}. A run needs at least one.")
        object.__setattr__(self, "digest", _digest(self.tasks))

    def __len__(self) -> int:
        return len(self.tasks)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Task, ...]: ...
    def __getitem__(self, index: int | slice) -> Task | tuple[Task, ...]:
        return self.tasks[index]

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)


def _digest(tasks: tuple[Task, ...]) -> str:
    total = sha256()
    for task in tasks:
        row: list[object] = [task.id, [dict(message) for message in task.messages], task.answer]
        row += [[[dict(message) for message in given.messages], given.reward] for given in task.candidates]
        total.update(json.dumps(row, ensure_ascii=False, sort_keys=True, default=str).encode() + b"\n")
    return total.hexdigest()
