"""Evaluate a model or a run on tasks: what ``posttrain eval`` and ``posttrain.evaluate`` call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.assemble import build_plug, build_rubric
from posttrain.config import Model, Plug, RewardPart, Rollouts, Settings, Tasks
from posttrain.errors import ConfigError
from posttrain.evals.result import EvalResult
from posttrain.evals.run import evaluate as run_evaluation
from posttrain.models.load import load_model
from posttrain.models.threads import apply_threads, choose_threads
from posttrain.records.run_directory import RunDirectory
from posttrain.tasks.chat import Chat
from posttrain.tasks.overlong import drop_overlong
from posttrain.tasks.source import load_tasks
from posttrain.tasks.taskset import TaskSet

Announce = Callable[[int, int], None]


class Protocol(Settings):
    """How something is measured; what is not given comes from the run's own recipe where there is one."""

    tasks: Tasks
    """Where the tasks come from."""
    rewards: tuple[RewardPart, ...]
    """What judges; the first part decides what is right."""
    rollouts: Rollouts = Rollouts()
    """Sampling."""
    samples: int = 8
    """Completions per task."""
    k: tuple[int, ...] = (1, 4, 8)
    """Which pass@k to report."""
    seed: int = 0
    """Seed of the draws."""
    engine: Plug = Plug(type="local")
    """The engine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """What a path offers to an evaluation."""

    model: str
    """What to load."""
    tasks: Tasks | None = None
    """The run's held-out tasks, or its training tasks where it has none."""
    rewards: tuple[RewardPart, ...] = ()
    """The run's reward."""
    rollouts: Rollouts | None = None
    """The run's sampling."""


def source(path: str) -> Source:
    """Read what a run directory offers; any other path is a model and offers nothing else."""
    if not (Path(path).expanduser() / "config.toml").is_file():
        return Source(model=path)
    with RunDirectory.open(path, write=False) as run:
        recipe = run.recipe
    held_out = recipe.evaluation.tasks if recipe.evaluation is not None else recipe.tasks
    return Source(model=path, tasks=held_out, rewards=recipe.rewards, rollouts=recipe.rollouts)


def evaluate(
    model: str | Path,
    *,
    tasks: str | Path | Tasks | TaskSet | None = None,
    rewards: Sequence[RewardPart] | str | None = None,
    rollouts: Rollouts | None = None,
    samples: int = 8,
    k: Sequence[int] = (1,),
    seed: int = 0,
    threads: int | None = None,
    progress: Announce | None = None,
    notes: Callable[[str], Any] = lambda text: None,
) -> EvalResult:
    """Measure a model folder, hub name or run directory on tasks.

    Raises ConfigError, DataError or ModelError where something is missing, before anything is loaded.
    """
    offered = source(str(model))
    if isinstance(tasks, TaskSet):
        chosen, section = tasks, Tasks(path=f"<{tasks.name}>")
    else:
        section = _tasks(tasks) or offered.tasks or _missing("tasks", model, "--tasks FILE.jsonl")
        chosen = load_tasks(section, seed=seed)
    parts = _rewards(rewards) or offered.rewards or _missing("a reward", model, "--reward number")
    protocol = Protocol(
        tasks=section,
        rewards=tuple(parts),
        rollouts=rollouts or offered.rollouts or Rollouts(),
        samples=samples,
        k=tuple(k),
        seed=seed,
    )
    rubric = build_rubric(protocol.rewards)
    beyond = [n for n in protocol.k if n > protocol.samples or n < 1]
    if beyond:
        raise ConfigError(
            f"pass@{beyond[0]} cannot be estimated from {protocol.samples} samples per task: raise --samples"
        )
    apply_threads(choose_threads(threads))
    loaded = load_model(Model(path=offered.model), seed=seed, announce=notes)
    chat = Chat(loaded.tokenizer, eos_ids=loaded.generation_eos_ids)
    engine = build_plug(
        "engines",
        protocol.engine,
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        chat=chat,
        seed=seed,
        window=loaded.window,
        stop_ids=chat.stop_ids,
    )
    room = max(loaded.window - protocol.rollouts.max_new_tokens, 1)
    chosen = drop_overlong(chosen, chat, room=room, policy=section.overlong)
    return asyncio.run(
        run_evaluation(
            chosen,
            engine=engine,
            chat=chat,
            rubric=rubric,
            make_env=lambda: build_plug("envs", protocol.rollouts.env),
            sampling=protocol.rollouts.sampling(),
            samples=protocol.samples,
            seed=protocol.seed,
            ks=protocol.k,
            max_turns=protocol.rollouts.max_turns,
            progress=progress,
            label=loaded.name,
        )
    )


def _tasks(tasks: str | Path | Tasks | None) -> Tasks | None:
    return Tasks(path=str(tasks)) if isinstance(tasks, str | Path) else tasks


def _rewards(rewards: Sequence[RewardPart] | str | None) -> Sequence[RewardPart]:
    if rewards is None:
        return ()
    return (RewardPart(type=rewards),) if isinstance(rewards, str) else rewards


def _missing(what: str, model: str | Path, remedy: str) -> Any:
    raise ConfigError(f"{model} does not say which {what.removeprefix('a ')} to use: give {remedy}")
