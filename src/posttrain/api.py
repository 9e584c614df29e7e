"""The five-line use: train, evaluate and resume as plain functions.

A reward is a plain function of a rollout, a TRL-style ``f(prompts, completions, **columns) -> list[float | None]``,
the name of a reward plug, or a list of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain import launch
from posttrain.config import Plug, Recipe, validate
from posttrain.errors import ConfigError, did_you_mean
from posttrain.launch import Result
from posttrain.loops.session import Progress
from posttrain.measure import RewardLike, evaluate, reward_parts
from posttrain.plugs import build_plug
from posttrain.tasks.source import task_set
from posttrain.tasks.taskset import TaskSet

__all__ = ["evaluate", "resume", "train"]

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
    table: dict[str, Any] = {
        "algorithm": {"type": algorithm} if isinstance(algorithm, str) else dict(algorithm),
        "model": dict(model) if isinstance(model, Mapping) else {"path": str(model)},
        "rewards": reward_parts(reward),
    }
    rows, table["tasks"] = _tasks(tasks, table["algorithm"])
    _apply(table, options)
    recipe = validate(Recipe, table, where="posttrain.train")
    return launch.launch(recipe, progress=progress, check=check, tasks=rows)


def resume(
    path: str | Path,
    *,
    steps: int | None = None,
    tasks: Sequence[Any] | TaskSet | None = None,
    reward: RewardLike | Sequence[RewardLike] | None = None,
    progress: Progress | None = None,
) -> Result:
    """Continue a run from its newest whole checkpoint and return it.

    Args:
        path: the run directory.
        steps: train up to so many batches instead of the recorded number.
        tasks: the same rows or TaskSet again, if the run began with tasks in memory.
        reward: the same reward again, if it is a function that cannot be imported by name.
        progress: shows the run; silent if not given.

    Raises:
        PosttrainError: the run cannot be continued exactly; the message says what to do.
    """
    rows = None if tasks is None else _rows(tasks, launch.recorded_algorithm(path))
    return launch.resume(
        path, progress=progress, tasks=rows, steps=steps, rewards=None if reward is None else reward_parts(reward)
    )


def _tasks(tasks: Any, algorithm: Mapping[str, Any]) -> tuple[TaskSet | None, dict[str, Any]]:
    if isinstance(tasks, Mapping):
        return None, dict(tasks)
    if isinstance(tasks, str | Path):
        return None, {"path": str(tasks)}
    rows = _rows(tasks, validate(Plug, algorithm, where="algorithm"))
    return rows, {"path": f"<{rows.name}>"}


def _rows(tasks: Sequence[Any] | TaskSet, algorithm: Plug) -> TaskSet:
    """Rows in memory as what the algorithm trains on: prompts, or demonstrations."""
    if isinstance(tasks, TaskSet):
        return tasks
    needs = build_plug("algorithms", algorithm).needs
    return task_set(tasks, for_imitation=needs.demonstrated, data="demonstrations" if needs.engine else needs.data)


def _apply(table: dict[str, Any], options: Mapping[str, Any]) -> None:
    """Put options into the recipe's table: sections whole, short names at their key."""
    for name, value in options.items():
        if name == "rewards":
            raise ConfigError("posttrain.train: give the reward, or a list of its parts, as reward=...")
        if name in Recipe.model_fields:
            if not isinstance(value, Mapping):
                raise ConfigError(f"posttrain.train: '{name}' is a section; give a dict, got {value!r}")
            table[name] = {**table.get(name, {}), **value}
        elif name in SHORTCUTS:
            section_name, key = SHORTCUTS[name]
            table.setdefault(section_name, {})[key] = str(value) if isinstance(value, Path) else value
        else:
            hint = did_you_mean(name, [*SHORTCUTS, *Recipe.model_fields])
            raise ConfigError(f"posttrain.train has no option '{name}'.{hint}")
    if "learner" in table:
        table["learner"].setdefault("type", "local")
