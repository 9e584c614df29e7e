"""Rollouts of a batch of tasks, all at the same time, scored group by group while the rest still generates.

All first requests reach the engine in one tick of the event loop, in the order of groups and rollouts; the
groups come back in the order of their positions, whatever finished first.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from posttrain.protocols import Engine
from posttrain.rollouts.rubric import Rubric, Verdicts
from posttrain.rollouts.run import ChatLike, EnvFactory, RolloutFailure, run_rollout
from posttrain.types import Group, Message, Outcome, Rollout, Sampling, Task

T = TypeVar("T")
OnRollout = Callable[[Rollout | RolloutFailure], None]
"""Called once for each rollout when it has ended, before it is scored."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Roller:
    """What every rollout of a run shares."""

    env_factory: EnvFactory
    """Makes one single-use environment per rollout."""
    engine: Engine
    """Generates."""
    chat: ChatLike
    """Messages to ids and back."""
    sampling: Sampling
    """How tokens are drawn."""
    rubric: Rubric | None
    """Scores; None where nobody does, and every rollout is kept without a reward."""
    max_turns: int = 1
    """The most completions per rollout."""
    on_rollout: OnRollout | None = None
    """Progress."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tally:
    """What became of the rollouts of a batch."""

    rollouts: int = 0
    """Rollouts that were begun."""
    kept: int = 0
    """Rollouts that have a reward."""
    broken: int = 0
    """Rollouts that failed before scoring: environment or engine."""
    unscored: int = 0
    """Rollouts dropped because a part failed or timed out."""
    inapplicable: int = 0
    """Rollouts dropped because no part applied."""
    empty_groups: int = 0
    """Groups of which no rollout is left."""
    outcomes: Mapping[str, Mapping[Outcome, int]] = field(default_factory=dict)
    """Final outcomes of scoring, by part."""
    retries: Mapping[str, int] = field(default_factory=dict)
    """Scores that were tried again, by part."""
    reasons: Mapping[str, int] = field(default_factory=dict)
    """Why rollouts broke or went unscored, and how often."""

    @property
    def failed(self) -> int:
        """Rollouts begun and not kept."""
        return self.rollouts - self.kept

    @property
    def failed_share(self) -> float:
        """Share of the rollouts that was not kept; 0 if none was begun."""
        return self.failed / self.rollouts if self.rollouts else 0.0

    def count(self, outcome: Outcome) -> int:
        """Return how many scores of all parts had an outcome."""
        return sum(counts.get(outcome, 0) for counts in self.outcomes.values())


async def roll_group(
    position: int, task: Task, *, seeds: Sequence[int], roller: Roller, greedy: bool = False
) -> tuple[Group, Tally]:
    """Roll one rollout per seed, score them, and return those that have a reward with the count of the rest.

    With ``greedy`` the last seed's is rolled at temperature 0 and scored on its own: the group's ``greedy``. A group
    whose greedy rollout has no reward comes back empty, for nothing in it can be compared.
    """
    roller = replace(roller, chat=_SharedOpening(roller.chat))
    if greedy:
        cold = replace(roller, sampling=replace(roller.sampling, temperature=0.0))
        return await _with_greedy(position, task, seeds, roller, cold)
    ended = await gather_or_cancel(_roll(task, index, seed, roller) for index, seed in enumerate(seeds))
    rollouts = [result for result in ended if isinstance(result, Rollout)]
    failures = [result for result in ended if isinstance(result, RolloutFailure)]
    if roller.rubric is None:
        verdicts, kept = Verdicts(rollouts=tuple(rollouts), outcomes={}), tuple(rollouts)
    else:
        verdicts = await roller.rubric.score(rollouts, task)
        kept = tuple(rollout for rollout in verdicts.rollouts if rollout.reward is not None)
    group = Group(position=position, task=task, rollouts=kept, failed=len(seeds) - len(kept))
    return group, _tally(group, failures, verdicts)


async def _with_greedy(
    position: int, task: Task, seeds: Sequence[int], roller: Roller, cold: Roller
) -> tuple[Group, Tally]:
    """A group of all seeds but the last, and that one's greedy rollout, at the same time."""
    (group, tally), (alone, lone_tally) = await gather_or_cancel(
        roll_group(position, task, seeds=part, roller=how) for part, how in ((seeds[:-1], roller), (seeds[-1:], cold))
    )
    both = merge_tallies([tally, lone_tally])
    if not alone.rollouts:
        lost = len(group.rollouts)
        group = replace(group, rollouts=(), failed=group.failed + lost)
        return group, replace(both, kept=0, unscored=both.unscored + lost, empty_groups=1)
    best = replace(alone.rollouts[0], index=len(seeds) - 1)
    return replace(group, greedy=best), replace(both, empty_groups=tally.empty_groups)


async def roll_batch(
    positions_tasks: Iterable[tuple[int, Task]],
    *,
    group_size: int,
    seed_of: Callable[[int, int], int],
    roller: Roller,
    greedy: bool = False,
) -> tuple[list[Group], Tally]:
    """Roll ``group_size`` rollouts of every task at the same time; return groups by position and what was lost.

    ``greedy`` adds one more at temperature 0 to each group, with the same weights.
    ``seed_of(position, index)`` gives each rollout its seed. A group of which nothing is left comes back empty.
    An error of the set-up (PosttrainError) or a bug cancels the rest, whose environments are closed, and is raised.
    """
    ordered = sorted(positions_tasks, key=lambda pair: pair[0])
    rolled = await gather_or_cancel(
        roll_group(
            position,
            task,
            seeds=[seed_of(position, i) for i in range(group_size + greedy)],
            roller=roller,
            greedy=greedy,
        )
        for position, task in ordered
    )
    return [group for group, _ in rolled], merge_tallies([tally for _, tally in rolled])


async def _roll(task: Task, index: int, seed: int, roller: Roller) -> Rollout | RolloutFailure:
    result = await run_rollout(
        task,
        index,
        seed,
        env_factory=roller.env_factory,
        engine=roller.engine,
        chat=roller.chat,
        sampling=roller.sampling,
        max_turns=roller.max_turns,
    )
    if roller.on_rollout is not None:
        roller.on_rollout(result)
    return result


class _SharedOpening:
    """A chat that renders and tokenises the opening messages of a group once."""

    def __init__(self, chat: ChatLike) -> None:
        self._opening: tuple[Message, ...] | None = None
        self._ids: tuple[int, ...] = ()
        self._chat = chat
        self.decode = chat.decode
        self.bridge = chat.bridge

    def prompt_ids(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the ids after which the assistant writes."""
        if self._opening is None:
            self._opening, self._ids = tuple(messages), self._chat.prompt_ids(messages)
        return self._ids if tuple(messages) == self._opening else self._chat.prompt_ids(messages)


async def gather_or_cancel(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all at the same time, begun in order; if one raises, cancel the others, wait for them, and raise it."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _tally(group: Group, failures: Sequence[RolloutFailure], verdicts: Verdicts) -> Tally:
    unscored = len(verdicts.rollouts) - len(group.rollouts) - verdicts.inapplicable
    return Tally(
        rollouts=len(group.rollouts) + group.failed,
        kept=len(group.rollouts),
        broken=len(failures),
        unscored=unscored,
        inapplicable=verdicts.inapplicable,
        empty_groups=int(not group.rollouts),
        outcomes=verdicts.outcomes,
        retries=verdicts.retries,
        reasons=Counter([*(failure.reason for failure in failures), *verdicts.reasons]),
    )


def merge_tallies(tallies: Sequence[Tally]) -> Tally:
    """Add up the tallies of several groups or batches."""
    outcomes: dict[str, Counter[Outcome]] = {}
    retries: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for tally in tallies:
        retries.update(tally.retries)
        reasons.update(tally.reasons)
        for part, counts in tally.outcomes.items():
            outcomes.setdefault(part, Counter()).update(counts)
    return Tally(
        rollouts=sum(tally.rollouts for tally in tallies),
        kept=sum(tally.kept for tally in tallies),
        broken=sum(tally.broken for tally in tallies),
        unscored=sum(tally.unscored for tally in tallies),
        inapplicable=sum(tally.inapplicable for tally in tallies),
        empty_groups=sum(tally.empty_groups for tally in tallies),
        outcomes={part: dict(counts) for part, counts in outcomes.items()},
        retries=dict(retries),
        reasons=dict(reasons),
    )
