"""A task with a demonstration, read both ways: as the answer to imitate, and as the prompt that asks for one."""

from __future__ import annotations

from dataclasses import replace

from posttrain.tasks.chat import Chat
from posttrain.tasks.preferences import KINDS, candidate_group
from posttrain.tasks.steps import step_group
from posttrain.types import Ending, Group, Rollout, Task


def asked(task: Task) -> Task:
    """The task without the assistant message that it ends with, if it does."""
    if task.messages[-1].get("role") != "assistant":
        return task
    return replace(task, messages=task.messages[:-1])


def demonstration_group(task: Task, position: int, chat: Chat) -> Group:
    """A demonstration as a group of one rollout without a reward."""
    rollout = Rollout(
        task=task,
        index=0,
        seed=0,
        segments=chat.demonstration_segments(task.messages),
        messages=task.messages,
        text=str(task.messages[-1]["content"]),
        ending=Ending.STOP,
    )
    return Group(position=position, task=task, rollouts=(rollout,))


def given_group(task: Task, position: int, chat: Chat, data: str) -> Group:
    """What a task brings along as a group, by ``Needs.data``: rewarded answers, judged steps, or a demonstration."""
    if data in KINDS:
        return candidate_group(task, position, chat)
    return (step_group if data == "steps" else demonstration_group)(task, position, chat)
