"""Named parts to one reward: reward = Σ weight · value over the parts that apply, or no reward at all.

A part that timed out or failed is tried again, on the whole group (it may compare rollouts); if it still fails,
the rollout has no reward: it is dropped and counted, never scored. An unparsable answer gets the part's value for
that case. A gate (``only_if``) leaves a part out unless another part's value is above zero.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from posttrain.errors import ConfigError, PosttrainError, did_you_mean
from posttrain.processes import describe
from posttrain.protocols import Reward
from posttrain.types import Outcome, Rollout, Score, Task

_BROKEN = (Outcome.TIMEOUT, Outcome.FAILED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One source of the reward."""

    reward: Reward
    """Scores the rollouts of a group."""
    name: str
    """Name in records and gates."""
    weight: float = 1.0
    """Factor in the sum; 0 only records."""
    only_if: str | None = None
    """Name of the part whose value must be above zero for this one to count."""
    unparsable: float = 0.0
    """Value of an answer that cannot be read."""
    attempts: int = 2
    """Tries before a crash or time-out drops the rollout."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdicts:
    """A group's rollouts, scored, and how often what happened."""

    rollouts: tuple[Rollout, ...]
    """All of them in order, with scores by part; ``reward`` is None where the rollout is to be dropped."""
    outcomes: Mapping[str, Mapping[Outcome, int]]
    """Final outcomes by part."""
    retries: Mapping[str, int] = field(default_factory=dict)
    """Second and later tries by part, in rollouts."""
    inapplicable: int = 0
    """Rollouts without a reward because no part applied to them."""
    reasons: tuple[str, ...] = ()
    """Why scores failed or timed out: ``part: detail``, one per such score."""


class Rubric:
    """Scores groups with its parts."""

    def __init__(self, parts: Sequence[Part]) -> None:
        """Raise ConfigError for duplicate names, unknown or circular gates, bad weights, or nothing that counts."""
        self.parts = tuple(parts)
        _check(self.parts)
        self._order = _gate_order(self.parts)

    async def score(self, rollouts: Sequence[Rollout], task: Task) -> Verdicts:
        """Run every part on the rollouts of one task, at the same time, and sum up.

        Scores that the environment gave count with weight 1; a part of the same name is a ConfigError.
        """
        self._refuse_clash(rollouts)
        if not rollouts:
            return Verdicts(rollouts=(), outcomes={part.name: {} for part in self.parts})
        results = await asyncio.gather(*(_run_part(part, rollouts, task) for part in self.parts))
        raw = {part.name: scores for part, (scores, _) in zip(self.parts, results, strict=True)}
        scored = [self._sum_up(r, {name: scores[i] for name, scores in raw.items()}) for i, r in enumerate(rollouts)]
        broken = [(n, s) for n, scores in raw.items() for s in scores if s.outcome in _BROKEN]
        return Verdicts(
            rollouts=tuple(scored),
            outcomes={name: dict(Counter(score.outcome for score in scores)) for name, scores in raw.items()},
            retries={part.name: count for part, (_, count) in zip(self.parts, results, strict=True) if count},
            inapplicable=sum(r.reward is None and not _is_broken(r) for r in scored),
            reasons=tuple(f"{name}: {score.detail}" for name, score in broken),
        )

    def _refuse_clash(self, rollouts: Sequence[Rollout]) -> None:
        clash = {score.name for rollout in rollouts for score in rollout.scores} & {part.name for part in self.parts}
        if clash:
            raise ConfigError(f"reward parts {sorted(clash)} have the name of an environment's score: rename the parts")

    def _sum_up(self, rollout: Rollout, raw: Mapping[str, Score]) -> Rollout:
        """Apply unparsable values and gates, record every part, and add."""
        final: dict[str, Score] = {}
        for part in self._order:
            final[part.name] = _gated(part, _readable(part, raw[part.name]), final)
        scores = (*rollout.scores, *(final[part.name] for part in self.parts))
        weights = {part.name: part.weight for part in self.parts}
        return replace(rollout, scores=scores, reward=_weighted_sum(scores, weights))


def _is_broken(rollout: Rollout) -> bool:
    return any(score.outcome in _BROKEN for score in rollout.scores)


def _readable(part: Part, score: Score) -> Score:
    if score.outcome is Outcome.UNPARSABLE:
        return replace(score, value=part.unparsable)
    return score


def _gated(part: Part, score: Score, final: Mapping[str, Score]) -> Score:
    """Return the score, or one that does not apply if the part's gate is closed."""
    if part.only_if is None:
        return score
    gate = final[part.only_if]
    if gate.value is not None and gate.value > 0:
        return score
    detail = f"left out: {part.only_if} is {gate.value} (would be {score.value})"
    return replace(score, value=None, outcome=Outcome.SCORED, detail=detail)


def _weighted_sum(scores: Sequence[Score], weights: Mapping[str, float]) -> float | None:
    """Return Σ weight · value; None if a part failed, if none applies, or if the sum overflows."""
    if any(score.outcome in _BROKEN for score in scores):
        return None
    terms = [weights.get(score.name, 1.0) * score.value for score in scores if score.value is not None]
    total = sum(terms)
    return float(total) if terms and math.isfinite(total) else None


async def _run_part(part: Part, rollouts: Sequence[Rollout], task: Task) -> tuple[list[Score], int]:
    """Score with one part, again where it failed; return the scores and how many tries were repeats."""
    scores = await _attempt(part, rollouts, task)
    repeats = 0
    for _ in range(part.attempts - 1):
        broken = [i for i, score in enumerate(scores) if score.outcome in _BROKEN]
        if not broken:
            break
        repeats += len(broken)
        again = await _attempt(part, rollouts, task)
        for i in broken:
            scores[i] = again[i]
    return scores, repeats


async def _attempt(part: Part, rollouts: Sequence[Rollout], task: Task) -> list[Score]:
    """One call of a reward plug, whose scores are checked: count, type, finite values."""
    try:
        given = list(await part.reward.score(rollouts, task))
    except PosttrainError:
        raise
    except Exception as error:  # a reward of the user's own may raise anything, and that is data
        return [_failed(part, describe(error)) for _ in rollouts]
    if len(given) != len(rollouts):
        return [_failed(part, f"gave {len(given)} scores for {len(rollouts)} rollouts") for _ in rollouts]
    return [_checked(part, score) for score in given]


def _checked(part: Part, score: Score) -> Score:
    if not isinstance(score, Score):
        return _failed(part, f"gave a {type(score).__name__}; expected a Score")
    if score.outcome is not Outcome.SCORED:
        return replace(score, name=part.name, value=None)
    if score.value is None:
        return replace(score, name=part.name)
    if not isinstance(score.value, int | float) or not math.isfinite(score.value):
        return _failed(part, f"gave the value {score.value!r}; expected a finite number or None")
    return replace(score, name=part.name, value=float(score.value))


def _failed(part: Part, detail: str) -> Score:
    return Score(name=part.name, value=None, outcome=Outcome.FAILED, detail=detail)


def _check(parts: Sequence[Part]) -> None:
    names = [part.name for part in parts]
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise ConfigError(f"reward parts {twice} appear more than once: give each its own name")
    for part in parts:
        if part.only_if is not None and part.only_if not in names:
            hint = did_you_mean(part.only_if, [name for name in names if name != part.name])
            raise ConfigError(f"reward part '{part.name}': only_if = '{part.only_if}' is not a part.{hint}")
        if not (math.isfinite(part.weight) and math.isfinite(part.unparsable)):
            raise ConfigError(f"reward part '{part.name}': weight and unparsable must be finite numbers")
        if part.attempts < 1:
            raise ConfigError(f"reward part '{part.name}': attempts must be 1 or more; got {part.attempts}")
    if parts and all(part.weight == 0 for part in parts):
        raise ConfigError(f"all reward parts {names} have weight 0, so every reward would be 0: give one a weight")


def _gate_order(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Parts so that each stands after its gate; raise ConfigError for a circle."""
    ordered: dict[str, Part] = {}
    waiting = list(parts)
    while waiting:
        ready = [part for part in waiting if part.only_if is None or part.only_if in ordered]
        if not ready:
            raise ConfigError(f"reward parts {[part.name for part in waiting]} wait for each other by only_if")
        ordered.update({part.name: part for part in ready})
        waiting = [part for part in waiting if part.name not in ordered]
    return tuple(ordered.values())
