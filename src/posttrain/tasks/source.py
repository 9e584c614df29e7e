"""Load tasks from where the recipe says: files, data sets, generators, reasoning_gym, or rows in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from posttrain.config import Tasks
from posttrain.errors import DataError
from posttrain.tasks.columns import Columns
from posttrain.tasks.files import Placed, file_rows
from posttrain.tasks.gym import gym_rows
from posttrain.tasks.hub import dataset_rows
from posttrain.tasks.preferences import KINDS, PreferenceColumns, with_wrong_answers, without_equal
from posttrain.tasks.taskset import TaskSet
from posttrain.tasks.toy import toy_rows
from posttrain.types import Task

__all__ = ["TaskSet", "load_tasks", "task_set"]


Reader = Columns | PreferenceColumns


def load_tasks(settings: Tasks, *, seed: int = 0, for_imitation: bool = False, data: str = "demonstrations") -> TaskSet:
    """Return the tasks of a recipe section.

    ``seed`` draws the problems of generators unless their options hold one. With ``for_imitation`` every task
    ends with an assistant message: the row's own, or the demonstration column's text; without, none may. If ``data``
    is preferences, rankings or labels, tasks are prompts with candidates (see `posttrain.tasks.preferences`).
    Raises DataError (file, line, column, what was expected and got) or ConfigError (a name or option).
    """
    columns = Columns(
        messages=settings.messages,
        question=settings.question,
        answer=settings.answer,
        answer_pattern=settings.answer_pattern,
        demonstration=settings.demonstration,
        system=settings.system,
    )
    name, rows = _rows(settings, seed)
    reader = _reader(data, columns, settings)
    if isinstance(reader, PreferenceColumns) and settings.generator is not None:
        rows = _numbered(name, with_wrong_answers([row for _, row in rows], reader.kind))
    return _build(rows, reader, name=name, limit=settings.limit, for_imitation=for_imitation)


def task_set(
    rows: Iterable[Mapping[str, Any] | Task | str],
    *,
    columns: Columns | None = None,
    name: str = "memory",
    limit: int | None = None,
    for_imitation: bool = False,
    data: str = "demonstrations",
) -> TaskSet:
    """Return tasks from rows in memory: mappings of columns, ready tasks, or plain questions."""
    if isinstance(rows, str | Mapping):
        raise DataError(f"tasks: expected a list of rows or questions; got one {type(rows).__name__}")
    placed = ((f"{name}, row {number}", row) for number, row in enumerate(rows, start=1))
    reader = _reader(data, columns or Columns(), None)
    return _build(placed, reader, name=name, limit=limit, for_imitation=for_imitation)


def _reader(data: str, columns: Columns, settings: Tasks | None) -> Reader:
    """What reads a row of this kind of data."""
    kind = next((kind for kind in KINDS if kind == data), None)
    if kind is None:
        return columns
    names = ("chosen", "rejected", "ranking", "scores", "completion", "label")
    given = {} if settings is None else {name: getattr(settings, name) for name in names}
    return PreferenceColumns(kind=kind, columns=columns, **given)


def _rows(settings: Tasks, seed: int) -> tuple[str, Placed]:
    """Return a name for people and the rows with their places."""
    if settings.path is not None:
        return Path(settings.path).name, file_rows(settings.path)
    if settings.dataset is not None:
        name = Path(settings.dataset).name
        return name, _numbered(name, dataset_rows(settings.dataset, settings.options, split=settings.split))
    if settings.generator is not None:
        name = settings.generator
        return name, _numbered(name, toy_rows(name, settings.options, seed=seed, split=settings.split))
    name = str(settings.reasoning_gym)
    return name, _numbered(name, gym_rows(name, settings.options, seed=seed, split=settings.split))


def _numbered(name: str, rows: Iterable[Any]) -> Placed:
    return ((f"{name}, row {number}", row) for number, row in enumerate(rows, start=1))


def _build(placed: Placed, columns: Reader, *, name: str, limit: int | None, for_imitation: bool) -> TaskSet:
    kind = columns.kind if isinstance(columns, PreferenceColumns) else ""
    tasks = (
        _ready(row, place, for_imitation, kind)
        if isinstance(row, Task)
        else columns.task(row, place, identity=str(number), source=name, for_imitation=for_imitation)
        for number, (place, row) in enumerate(islice(placed, limit))
    )
    return without_equal(TaskSet(tasks=tuple(_with_own_ids(tasks)), name=name), kind)


def _ready(task: Task, place: str, for_imitation: bool, kind: str) -> Task:
    """Check that a ready task is what the run can use: a demonstration, a prompt, or a prompt with candidates."""
    if not task.messages:
        raise DataError(f"{place}: task '{task.id}' has no messages")
    if kind:
        if task.candidates:
            return task
        raise DataError(f"{place}: task '{task.id}' has no candidates; {kind} need answers to compare")
    if (task.messages[-1].get("role") == "assistant") == for_imitation:
        return task
    if for_imitation:
        raise DataError(f"{place}: task '{task.id}' is no demonstration: it must end with an assistant message")
    raise DataError(f"{place}: task '{task.id}' ends with an assistant message, so there is nothing left to answer")


def _with_own_ids(tasks: Iterable[Task]) -> Iterator[Task]:
    """Make repeated ids different, in source order: the second ``a`` becomes ``a#2``."""
    seen: set[str] = set()
    for task in tasks:
        identity, number = task.id, 1
        while identity in seen:
            number += 1
            identity = f"{task.id}#{number}"
        seen.add(identity)
        yield task if identity == task.id else _renamed(task, identity)


def _renamed(task: Task, identity: str) -> Task:
    return replace(task, id=identity)
