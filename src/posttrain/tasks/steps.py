"""Solutions with a verdict on every step: what a process reward model reads, and how to make some.

A row is a demonstration whose last assistant message has one step per line, and a ``labels`` column with a number in
[0, 1], or null for no verdict, for each line. `corrupt` makes such rows from right solutions: one number of one step
is changed and carried on, so that the steps before stay right and those from there on are wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from posttrain.errors import DataError
from posttrain.tasks.chat import Chat
from posttrain.tasks.taskset import TaskSet
from posttrain.types import Ending, Group, Rollout, Segment, Task

NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.]*\d)")
"""A whole number that stands by itself."""


def refuse_unlabelled(tasks: TaskSet) -> None:
    """Raise DataError for a solution whose labels do not fit its steps."""
    for task in tasks:
        step_labels(task)


def step_labels(task: Task) -> list[float | None]:
    """One label per line of the solution; DataError where they are missing, too many or out of range."""
    lines, labels = _lines(task), task.columns.get("labels")
    if not isinstance(labels, list | tuple) or len(labels) != len(lines):
        got = len(labels) if isinstance(labels, list | tuple) else repr(labels)
        raise DataError(f"task '{task.id}': expected a labels column with one label per line, {len(lines)}; got {got}")
    wrong = [label for label in labels if label is not None and not _is_share(label)]
    if wrong:
        raise DataError(f"task '{task.id}': a label is a number from 0 to 1, or null; got {wrong[0]!r}")
    return [None if label is None else float(label) for label in labels]


def step_group(task: Task, position: int, chat: Chat) -> Group:
    """The solution as a group of one rollout whose turns are its steps; DataError where labels do not fit."""
    step_labels(task)
    row = chat.encode_demonstration(task.messages, last_only=True)
    rollout = Rollout(
        task=task,
        index=0,
        seed=0,
        segments=(_numbered(row, _lines(task), chat),),
        messages=task.messages,
        text=str(task.messages[-1]["content"]),
        ending=Ending.STOP,
        turn_count=len(_lines(task)),
    )
    return Group(position=position, task=task, rollouts=(rollout,))


def corrupt(rows: Iterable[Mapping[str, Any]], *, seed: int = 0, column: str = "solution") -> Iterator[dict[str, Any]]:
    """Yield every row twice: as it is with all labels 1, and with a mistake in one step and 0 from there on.

    ``column`` holds a right solution, one step per line. The result of the chosen step (its last number) is replaced
    by a near one, or by one with a digit too many, and every later mention of that number follows it. A row without
    numbers comes only as it is.
    """
    for index, row in enumerate(rows):
        lines = str(row[column]).split("\n")
        yield {**row, "labels": [1.0] * len(lines)}
        random = np.random.default_rng(np.random.SeedSequence([seed, index]))
        places = [place for place, line in enumerate(lines) if NUMBER.search(line)]
        if not places:
            continue
        place = int(random.choice(places))
        wrong, labels = mistaken(lines, place, random)
        yield {**row, column: "\n".join(wrong), "labels": labels}


def mistaken(lines: list[str], place: int, random: np.random.Generator) -> tuple[list[str], list[float]]:
    """The lines with another result in line ``place``, carried on to the later ones, and the labels."""
    right = NUMBER.findall(lines[place])[-1]
    wrong = _near(int(right), random) if random.random() < 0.5 else right + str(random.integers(10))
    last = list(NUMBER.finditer(lines[place]))[-1]
    made = lines[place][: last.start()] + wrong + lines[place][last.end() :]
    carried = [NUMBER.sub(lambda found: wrong if found[0] == right else found[0], line) for line in lines[place + 1 :]]
    return [*lines[:place], made, *carried], [1.0] * place + [0.0] * (len(lines) - place)


def _near(right: int, random: np.random.Generator) -> str:
    """Another number at most about a quarter away."""
    change = int(random.integers(1, max(2, right // 4 + 2)))
    return str(right + change if random.random() < 0.5 or change > right else right - change)


def _numbered(row: Segment, lines: list[str], chat: Chat) -> Segment:
    """The segment with each trained token's step as its turn; a step ends with the token that completes its text."""
    places = [place for place, trained in enumerate(row.loss_mask) if trained]
    ids = [row.ids[place] for place in places]
    turns, step, end = list(row.turns), 0, len(lines[0])
    for count, place in enumerate(places, start=1):
        turns[place] = step
        written = len(chat.decode(ids[:count])) if step < len(lines) - 1 else 0
        while step < len(lines) - 1 and written >= end:
            step += 1
            end += 1 + len(lines[step])
    return Segment(
        ids=row.ids,
        loss_mask=row.loss_mask,
        rollout_logprobs=row.rollout_logprobs,
        versions=row.versions,
        turns=tuple(turns),
        prompt_length=row.prompt_length,
    )


def _lines(task: Task) -> list[str]:
    return str(task.messages[-1]["content"]).split("\n")


def _is_share(label: Any) -> bool:
    return isinstance(label, int | float) and 0 <= label <= 1
