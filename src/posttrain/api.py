"""The five-line use: train, evaluate and resume as plain functions.

A reward is a plain function of a rollout, a TRL-style ``f(prompts, completions, **columns) -> list[float | None]``,
the name of a reward plug, or a list of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.config import Recipe, validate
from posttrain.errors import ConfigError, did_you_mean
from posttrain.launch import Result, launch, resume
from posttrain.loops.session import Progress
from posttrain.measure import evaluate
from posttrain.tasks.source import task_set
from posttrain.tasks.taskset import TaskSet

__all__ = ["evaluate", "resume", "train"]

RewardLike = str | Callable[..., Any] | Mapping[str, Any]

SHORTCUTS = {
    "name": ("run", "name"),
    "directory": ("run", "directory"),
    "seed": ("run", "seed"),
    "steps": ("run", "steps"),
    "threads": ("run", "threads"),
    "group_size": ("rollouts", "group_size"),
    "prompts_per_step": ("rollouts", "prompts_per_step"),
    "max_new_tokens": ("rollouts", "max_new_tokens"),
    "temperature": ("rollouts", "temperature"),
    "learning_rate": ("learner", "learning_rate"),
    "tokens_per_microbatch": ("batches", "tokens_per_microbatch"),
    "demonstrations_per_step": ("batches", "demonstrations_per_step"),
    "lora": ("model", "lora"),
}
"""Options of `train` and the recipe key each one sets."""


def train(
    *,
    algorithm: str | Mapping[str, Any],
    model: str | Path | Mapping[str, Any],
    tasks: str | Path | Sequence[Any] | TaskSet | Mapping[str, Any],
    reward: RewardLike | Sequence[RewardLike] | None = None,
    check: bool = True,
    progress: Progress | None = None,
    **options: Any,
) -> Result:
    """Train and return the finished run.

    Args:
        algorithm: a name such as "grpo", or its section with options.
        model: a folder, hub name, "toy" or "smollm2", or the model section.
        tasks: a file, rows in memory, a TaskSet, or the tasks section.
        reward: see the module; online algorithms need one.
        check: prove the invariants before the first step.
        progress: shows the run; silent if not given.
        options: whole sections by name (run, rollouts, batches, learner, engine, evaluation) or the short names
            of SHORTCUTS, for example ``steps=50``.

    Raises:
        PosttrainError: the recipe, tasks, model or reward cannot be used; the message says what to do.
    """
    rows, section = _tasks(tasks)
    table: dict[str, Any] = {
        "algorithm": {"type": algorithm} if isinstance(algorithm, str) else dict(algorithm),
        "model": dict(model) if isinstance(model, Mapping) else {"path": str(model)},
        "tasks": section,
        "rewards": [_reward(part, number) for number, part in enumerate(_listed(reward))],
    }
    _apply(table, options)
    return launch(validate(Recipe, table, where="posttrain.train"), progress=progress, check=check, tasks=rows)


def _tasks(tasks: Any) -> tuple[TaskSet | None, dict[str, Any]]:
    if isinstance(tasks, Mapping):
        return None, dict(tasks)
    if isinstance(tasks, str | Path):
        return None, {"path": str(tasks)}
    rows = tasks if isinstance(tasks, TaskSet) else task_set(tasks)
    return rows, {"path": f"<{rows.name}>"}


def _listed(reward: Any) -> list[RewardLike]:
    if reward is None:
        return []
    return list(reward) if isinstance(reward, Sequence) and not isinstance(reward, str) else [reward]


def _reward(part: RewardLike, number: int) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": part}
    if isinstance(part, Mapping):
        return dict(part)
    return {"type": "function", "function": part, "name": getattr(part, "__name__", f"function_{number}")}


def _apply(table: dict[str, Any], options: Mapping[str, Any]) -> None:
    """Put options into the recipe's table: sections whole, short names at their key."""
    for name, value in options.items():
        if name in Recipe.model_fields:
            section = value if isinstance(value, Mapping) else None
            if section is None:
                raise ConfigError(f"posttrain.train: '{name}' is a section; give a dict, got {value!r}")
            table[name] = {**table.get(name, {}), **section}
        elif name in SHORTCUTS:
            section_name, key = SHORTCUTS[name]
            table.setdefault(section_name, {})[key] = str(value) if isinstance(value, Path) else value
        else:
            hint = did_you_mean(name, [*SHORTCUTS, *Recipe.model_fields])
            raise ConfigError(f"posttrain.train has no option '{name}'.{hint}")
    if "learner" in table:
        table["learner"].setdefault("type", "local")
