"""Evaluate a model or a run on tasks: what ``posttrain eval`` and ``posttrain.evaluate`` call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.assemble import build_rubric
from posttrain.config import Model, Plug, RewardPart, Rollouts, Settings, Tasks, validate
from posttrain.errors import ConfigError
from posttrain.evals.best_of_n import best_of_n
from posttrain.evals.result import EvalResult
from posttrain.evals.run import evaluate as run_evaluation
from posttrain.evals.searched import Searched
from posttrain.evals.step_search import StepSearch, step_search
from posttrain.models.load import load_model
from posttrain.models.threads import apply_threads, choose_threads
from posttrain.plugs import build_plug
from posttrain.records.run_directory import RunDirectory
from posttrain.rollouts.rubric import Rubric
from posttrain.tasks.chat import Chat
from posttrain.tasks.overlong import drop_overlong
from posttrain.tasks.source import load_tasks, task_set
from posttrain.tasks.taskset import TaskSet

Announce = Callable[[int, int], None]
RewardLike = str | Callable[..., Any] | Mapping[str, Any] | RewardPart
"""Name of a reward plug, a function of a rollout, a TRL-style function, or a part with its options."""


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
    """The run's sampling, at the temperature of its evaluation."""
    seed: int | None = None
    """The run's seed, which draws the problems of generators."""


def source(path: str) -> Source:
    """Read what a run directory offers; any other path is a model and offers nothing else."""
    if not (Path(path).expanduser() / "config.toml").is_file():
        return Source(model=path)
    with RunDirectory.open(path, write=False) as run:
        recipe = run.recipe
    held_out, rollouts = recipe.tasks, recipe.rollouts
    if recipe.evaluation is not None:
        held_out = recipe.evaluation.tasks
        rollouts = rollouts.model_copy(update={"temperature": recipe.evaluation.temperature})
    return Source(model=path, tasks=held_out, rewards=recipe.rewards, rollouts=rollouts, seed=recipe.run.seed)


def evaluate(
    model: str | Path,
    *,
    tasks: str | Path | Tasks | TaskSet | Mapping[str, Any] | Sequence[Any] | None = None,
    reward: RewardLike | Sequence[RewardLike] | None = None,
    rollouts: Rollouts | None = None,
    samples: int = 8,
    k: Sequence[int] = (1,),
    seed: int = 0,
    threads: int | None = None,
    progress: Announce | None = None,
    notes: Callable[[str], Any] = lambda text: None,
) -> EvalResult:
    """Measure a model folder, hub name or run directory on tasks.

    ``tasks``: a file, a tasks section, a TaskSet or rows in memory; ``reward``: as for `posttrain.train`. A run
    directory offers its own. Raises ConfigError, DataError or ModelError where something is missing, before anything
    is loaded.
    """
    opened = bench(
        model,
        tasks=tasks,
        reward=reward,
        rollouts=rollouts,
        samples=samples,
        k=k,
        seed=seed,
        threads=threads,
        notes=notes,
    )
    protocol = opened.protocol
    return asyncio.run(
        run_evaluation(
            opened.tasks,
            engine=opened.engine,
            chat=opened.chat,
            rubric=opened.rubric,
            make_env=opened.make_env,
            sampling=protocol.rollouts.sampling(),
            samples=protocol.samples,
            seed=protocol.seed,
            ks=protocol.k,
            max_turns=protocol.rollouts.max_turns,
            progress=progress,
            label=opened.label,
        )
    )


def search(
    model: str | Path,
    *,
    tasks: str | Path | Tasks | TaskSet | Mapping[str, Any] | Sequence[Any] | None = None,
    reward: RewardLike | Sequence[RewardLike] | None = None,
    judge: RewardLike | Sequence[RewardLike] | None = None,
    steps: StepSearch | None = None,
    rollouts: Rollouts | None = None,
    samples: int = 8,
    seed: int = 0,
    threads: int | None = None,
    progress: Announce | None = None,
    notes: Callable[[str], Any] = lambda text: None,
) -> Searched:
    """Spend compute at test time: best of ``samples``, or with ``steps`` a beam search over steps.

    ``reward`` verifies answers, ``judge`` chooses among them (best-of-N without one shows what a perfect judge would
    reach; a step search needs one). The rest is as for `evaluate`.
    """
    parts = reward_parts(judge)
    if steps is not None and not parts:
        raise ConfigError("a step search needs a judge of unfinished answers: give --judge, or judge=...")
    opened = bench(
        model, tasks=tasks, reward=reward, rollouts=rollouts, samples=samples, seed=seed, threads=threads, notes=notes
    )
    judging = build_rubric(parts) if parts else None
    shared: dict[str, Any] = {
        "engine": opened.engine,
        "chat": opened.chat,
        "rubric": opened.rubric,
        "sampling": opened.protocol.rollouts.sampling(),
        "seed": seed,
        "progress": progress,
        "label": opened.label,
    }
    if steps is not None and judging is not None:
        return asyncio.run(step_search(opened.tasks, judge=judging, settings=steps, **shared))
    turns = opened.protocol.rollouts.max_turns
    return asyncio.run(
        best_of_n(opened.tasks, judge=judging, samples=samples, make_env=opened.make_env, max_turns=turns, **shared)
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """A model ready to be measured."""

    tasks: TaskSet
    """Tasks that fit the window."""
    engine: Any
    """Samples."""
    chat: Chat
    """Messages to ids and back."""
    rubric: Rubric
    """Verifies."""
    make_env: Callable[[], Any]
    """Makes one single-use environment."""
    protocol: Protocol
    """How it is measured."""
    label: str
    """The model's name."""


def bench(
    model: str | Path,
    *,
    tasks: Any,
    reward: RewardLike | Sequence[RewardLike] | None,
    rollouts: Rollouts | None,
    samples: int,
    k: Sequence[int] = (1,),
    seed: int,
    threads: int | None,
    notes: Callable[[str], Any],
) -> Bench:
    """Validate the protocol, then load the model and what measures it."""
    offered = source(str(model))
    given = given_tasks(tasks) if tasks is not None else offered.tasks
    section, chosen = chosen_tasks(given or _missing("tasks", model, "--tasks FILE.jsonl"), seed, offered)
    parts = reward_parts(reward) or offered.rewards or _missing("a reward", model, "--reward number")
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
    return Bench(
        tasks=drop_overlong(chosen, chat, room=room, policy=section.overlong),
        engine=engine,
        chat=chat,
        rubric=rubric,
        make_env=lambda: build_plug("envs", protocol.rollouts.env),
        protocol=protocol,
        label=loaded.name,
    )


def given_tasks(tasks: Any) -> Tasks | TaskSet:
    """A tasks section for what names tasks, a TaskSet for tasks in memory."""
    if isinstance(tasks, Tasks | TaskSet):
        return tasks
    if isinstance(tasks, str | Path):
        return Tasks(path=str(tasks))
    return validate(Tasks, tasks, where="tasks") if isinstance(tasks, Mapping) else task_set(tasks)


def chosen_tasks(given: Tasks | TaskSet, seed: int, offered: Source) -> tuple[Tasks, TaskSet]:
    """The section to record and the tasks; a run's own problems are drawn with the run's seed."""
    if isinstance(given, TaskSet):
        return Tasks(path=f"<{given.name}>"), given
    own = given == offered.tasks and offered.seed is not None
    return given, load_tasks(given, seed=offered.seed if own and offered.seed is not None else seed)


def reward_parts(reward: RewardLike | Sequence[RewardLike] | None) -> tuple[RewardPart, ...]:
    """The parts of a reward given as names, functions or sections, one or several."""
    if reward is None:
        return ()
    listed = list(reward) if isinstance(reward, Sequence) and not isinstance(reward, str) else [reward]
    return tuple(_reward_part(part, number) for number, part in enumerate(listed))


def _reward_part(part: RewardLike, number: int) -> RewardPart:
    if isinstance(part, RewardPart):
        return part
    if isinstance(part, str):
        return RewardPart(type=part)
    if isinstance(part, Mapping):
        return validate(RewardPart, part, where="reward")
    name = getattr(part, "__name__", f"function_{number}")
    return validate(RewardPart, {"type": "function", "function": part, "name": name}, where="reward")


def _missing(what: str, model: str | Path, remedy: str) -> Any:
    raise ConfigError(f"{model} does not say which {what.removeprefix('a ')} to use: give {remedy}")
