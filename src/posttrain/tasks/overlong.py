"""Leave out, or refuse, tasks whose prompt does not fit the room it may take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from posttrain.errors import DataError
from posttrain.tasks.chat import Chat
from posttrain.tasks.preferences import candidate_group
from posttrain.tasks.taskset import TaskSet
from posttrain.types import Task


def drop_overlong(tasks: TaskSet, chat: Chat, *, room: int, policy: Literal["skip", "refuse"]) -> TaskSet:
    """Return the tasks that take at most ``room`` tokens: the prompt, or for a demonstration the whole row.

    ``skip`` counts the others in ``skipped['overlong']``; ``refuse`` raises a DataError that names the first.
    A result without tasks raises too.
    """
    if room < 1:
        raise DataError(
            f"{tasks.name}: no room for a prompt ({room} tokens). Lower max_new_tokens or raise the window."
        )
    lengths = [(task, token_count(task, chat)) for task in tasks]
    kept = tuple(task for task, length in lengths if length <= room)
    longest, length = max(lengths, key=lambda pair: pair[1])
    advice = "Shorten the tasks, lower max_new_tokens, or use a model with a larger window."
    if not kept:
        shortest = min(length for _, length in lengths)
        raise DataError(
            f"{tasks.name}: all {len(tasks)} tasks are longer than the {room} tokens there is room for; "
            f"the shortest has {shortest}. {advice}"
        )
    if len(kept) < len(tasks) and policy == "refuse":
        first, count = next(_over(lengths, room))
        raise DataError(
            f"{tasks.name}: task '{first.id}' has {count} tokens, room is {room}; {len(tasks) - len(kept)} tasks are "
            f"too long, the longest is '{longest.id}' with {length}. {advice} "
            'Or set tasks.overlong = "skip" to leave them out.'
        )
    if len(kept) == len(tasks):
        return tasks
    counts = {**tasks.skipped, "overlong": tasks.skipped.get("overlong", 0) + len(tasks) - len(kept)}
    return replace(tasks, tasks=kept, skipped=counts)


def token_count(task: Task, chat: Chat) -> int:
    """Return the tokens of the prompt, or of the longest row if the task brings its answers along."""
    if task.candidates:
        group = candidate_group(task, 0, chat)
        return max(len(segment.ids) for rollout in group.rollouts for segment in rollout.segments)
    if task.messages[-1].get("role") == "assistant":
        return max(len(segment.ids) for segment in chat.demonstration_segments(task.messages))
    return len(chat.prompt_ids(task.messages))


def _over(lengths: list[tuple[Task, int]], room: int) -> Iterator[tuple[Task, int]]:
    return (pair for pair in lengths if pair[1] > room)
