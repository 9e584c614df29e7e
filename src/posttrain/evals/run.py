"""Evaluation: every task sampled n times by an engine, scored, and reduced to numbers with protocol and intervals.

Consumes tasks and weights in an engine, produces one `EvalResult`. All prompts generate at the same time; a group is
reduced to its counts as soon as it is scored, so memory does not grow with the task set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from posttrain.errors import ConfigError
from posttrain.evals.fingerprint import fingerprint, verifier_digest
from posttrain.evals.result import EvalResult, PromptResult
from posttrain.evals.summary import Right, require_ks, summarise, summarise_group
from posttrain.protocols import Engine
from posttrain.rollouts.group import Roller, Tally, gather_or_cancel, merge_tallies, roll_group
from posttrain.rollouts.rubric import Rubric
from posttrain.rollouts.run import ChatLike, EnvFactory
from posttrain.tasks.order import stable_hash
from posttrain.tasks.taskset import TaskSet
from posttrain.types import Sampling, Task

Progress = Callable[[int, int], None]
"""Called with (rollouts that have ended, rollouts in all)."""


class TemplatedChat(ChatLike, Protocol):
    """A chat that knows its template."""

    template_hash: str
    """sha256 hex of the template and the special tokens."""


async def evaluate(
    tasks: TaskSet,
    *,
    engine: Engine,
    chat: TemplatedChat,
    rubric: Rubric,
    make_env: EnvFactory,
    sampling: Sampling,
    samples: int,
    seed: int,
    ks: Sequence[int] = (1,),
    right: Right | None = None,
    max_turns: int = 1,
    progress: Progress | None = None,
    step: int | None = None,
    label: str = "",
) -> EvalResult:
    """Sample every task ``samples`` times with the engine's weights and return the numbers over prompts.

    ``right`` says which rollouts are right (the first reward part that applies, at 1, if not given). The draws depend
    on ``seed``, the task's place and the sample's number only, and differ from those of training with the same seed.
    Raises ConfigError for a k that so many samples cannot give and for a part that does not exist, RewardError if
    nothing could be scored.
    """
    require_ks(ks, samples)
    rule = Right() if right is None else right
    _require_part(rule, rubric)
    roller = Roller(
        env_factory=make_env,
        engine=engine,
        chat=chat,
        sampling=sampling,
        rubric=rubric,
        max_turns=max_turns,
        on_rollout=_counter(progress, len(tasks) * samples),
    )
    protocol = fingerprint(
        template_hash=chat.template_hash,
        sampling=sampling,
        tasks_digest=tasks.digest,
        task_count=len(tasks),
        verifier=verifier_digest(rubric.parts, f"{rule} after at most {max_turns} turns"),
        samples=samples,
    )
    seeds = [[evaluation_seed(seed, place, index) for index in range(samples)] for place in range(len(tasks))]
    found = await gather_or_cancel(
        _attempt(place, task, seeds[place], roller=roller, right=rule) for place, task in enumerate(tasks)
    )
    reasons = merge_tallies([tally for _, tally in found]).reasons
    prompts = [prompt for prompt, _ in found]
    return summarise(prompts, ks=ks, fingerprint=protocol, step=step, label=label, reasons=reasons)


def evaluation_seed(seed: int, place: int, index: int) -> int:
    """Return the 63-bit seed of one sample: never the seed of a training rollout."""
    return stable_hash("evaluation", seed, place, index)


async def _attempt(
    place: int, task: Task, seeds: Sequence[int], *, roller: Roller, right: Right
) -> tuple[PromptResult, Tally]:
    group, tally = await roll_group(place, task, seeds=seeds, roller=roller)
    return summarise_group(group, right), tally


def _require_part(right: Right, rubric: Rubric) -> None:
    names = [part.name for part in rubric.parts]
    if right.part is not None and right.part not in names:
        raise ConfigError(f"the part '{right.part}' that says what is right is none of the reward parts {names}")


def _counter(progress: Progress | None, total: int) -> Callable[[object], None] | None:
    """Turn a progress display into what rollouts call when they end."""
    if progress is None:
        return None
    ended = 0

    def count(_: object) -> None:
        nonlocal ended
        ended += 1
        progress(ended, total)

    return count
