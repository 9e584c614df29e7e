"""One rollout: one environment and one engine, turn by turn, token-exact.

Turn 1 is prompted with the template of the opening messages. A later prompt extends the row so far (bridge) or,
where history would be rewritten, begins a new segment from all messages. Only sampled tokens have ``loss_mask``.
A failure of the environment or the engine is a value, ``RolloutFailure``: counted, never scored.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from posttrain.errors import PosttrainError
from posttrain.processes import describe
from posttrain.protocols import Engine, Env, EnvStep
from posttrain.rollouts.segments import SegmentBuilder, check_completion
from posttrain.types import Completion, Ending, Message, Outcome, Rollout, Sampling, Score, Task

EnvFactory = Callable[[], Env]
"""Makes one single-use environment."""
T = TypeVar("T")

_SEGMENT_SEED_STRIDE = 0x9E3779B97F4A7C15
_SEED_LIMIT = 1 << 63


class ChatLike(Protocol):
    """What a rollout needs of `posttrain.tasks.chat.Chat`."""

    def prompt_ids(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the ids after which the assistant writes."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids without special tokens."""
        ...

    def bridge(self, ids: Sequence[int], reply: Sequence[Message]) -> tuple[int, ...] | None:
        """Return ``ids`` extended by the reply and the next generation prompt, or None."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutFailure:
    """A rollout that broke before it could be scored."""

    task: Task
    """The task that was attempted."""
    index: int
    """Place in its group."""
    seed: int
    """Seed of the rollout."""
    reason: str
    """What broke, where and how, in one line."""


class _Broken(Exception):
    """Carries the reason out of a turn; never leaves this file."""


async def run_rollout(
    task: Task,
    index: int,
    seed: int,
    *,
    env_factory: EnvFactory,
    engine: Engine,
    chat: ChatLike,
    sampling: Sampling,
    max_turns: int = 1,
) -> Rollout | RolloutFailure:
    """Attempt a task once and return the unscored rollout (its environment's own scores included), or the failure.

    It stops when the environment terminates or truncates, after ``max_turns`` completions, when the window is full
    or a completion was cut off. The environment sees a cut-off message too, so that it can score it. A full window
    makes the ending ``LENGTH``. Errors of the user's set-up (PosttrainError) are raised, all else is a failure.
    """
    try:
        env = await _guard("environment", _made(env_factory))
        try:
            rollout = await _Attempt(task, index, seed, env, engine, chat, sampling, max_turns).run()
        finally:
            await _guard("environment's close", env.close())
    except _Broken as broken:
        return RolloutFailure(task=task, index=index, seed=seed, reason=str(broken))
    return rollout


async def _made(env_factory: EnvFactory) -> Env:
    return env_factory()


async def _guard(place: str, awaitable: Awaitable[T]) -> T:
    """Await code that is not ours; what it raises becomes the reason of a failure."""
    try:
        return await awaitable
    except (PosttrainError, _Broken):
        raise
    except Exception as error:  # an environment or engine may raise anything, and that is data
        raise _Broken(f"{place}: {describe(error)}") from error


class _Attempt:
    """The state of one rollout while it runs."""

    def __init__(
        self,
        task: Task,
        index: int,
        seed: int,
        env: Env,
        engine: Engine,
        chat: ChatLike,
        sampling: Sampling,
        max_turns: int,
    ) -> None:
        self.task, self.index, self.seed = task, index, seed
        self.env, self.engine, self.chat = env, engine, chat
        self.sampling, self.max_turns = sampling, max_turns
        self.messages: list[Message] = []
        self.reply: tuple[Message, ...] = ()
        self.segments: list[SegmentBuilder] = []
        self.scores: dict[str, float] = {}
        self.turn_scores: list[dict[str, float]] = []
        self.text = ""
        self.ending = Ending.LENGTH
        self.turn_count = 0

    async def run(self) -> Rollout:
        """Take turns until one is the last."""
        self.messages += await _guard("environment's reset", self.env.reset(self.task))
        self.segments.append(SegmentBuilder(self.chat.prompt_ids(self.messages)))
        if self._room() < 1:
            raise _Broken(f"prompt of {len(self.segments[0].ids)} tokens fills the window of {self.engine.window}")
        while await self._turn():
            if not self._continue():
                self.ending = Ending.LENGTH
                break
        return self._rollout()

    async def _turn(self) -> bool:
        """Sample one completion and let the environment answer; return whether another turn follows."""
        completion = await _guard("engine", self._generate())
        if completion.ending is Ending.ABORTED:
            raise _Broken("engine: aborted before the completion was finished")
        self.segments[-1].append_completion(completion, self.turn_count)
        self.turn_count += 1
        self.ending = completion.ending
        self.text = self.chat.decode(completion.ids)
        message = {"role": "assistant", "content": self.text}
        self.messages.append(message)
        step = await _guard("environment's step", self.env.step(message))
        self._count(step)
        over = step.terminated or step.truncated or self.turn_count >= self.max_turns
        if over or completion.ending is Ending.LENGTH:
            return False
        self.messages += step.reply
        self.reply = step.reply
        return True

    async def _generate(self) -> Completion:
        row = self.segments[-1].ids
        room = min(self.sampling.max_new_tokens, self._room())
        sampling = replace(self.sampling, max_new_tokens=room)
        completion = await self.engine.generate(row, sampling, seed=self._segment_seed())
        check_completion(completion)
        return completion

    def _continue(self) -> bool:
        """Make the next prompt: an extension of the row, or a new segment; False if the window has no room for it."""
        row = self.segments[-1]
        extended = self.chat.bridge(row.ids, self.reply)
        prompt = self.chat.prompt_ids(self.messages) if extended is None else extended
        if len(prompt) >= self.engine.window:
            return False
        if extended is None:
            self.segments.append(SegmentBuilder(prompt))
        else:
            row.extend_to(prompt)
        return True

    def _room(self) -> int:
        return self.engine.window - len(self.segments[-1].ids)

    def _segment_seed(self) -> int:
        """Each segment draws from its own seed: two rows would otherwise reuse the draws at equal row indices."""
        return (self.seed + (len(self.segments) - 1) * _SEGMENT_SEED_STRIDE) % _SEED_LIMIT

    def _count(self, step: EnvStep) -> None:
        """Add the environment's scores by name over the turns, as a return is the sum of its rewards."""
        for name, value in (step.scores or {}).items():
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise _Broken(f"environment's step: score {name!r} is {value!r}; expected a finite number")
            self.scores[name] = self.scores.get(name, 0.0) + float(value)
        self.turn_scores.append({name: float(value) for name, value in (step.scores or {}).items()})

    def _rollout(self) -> Rollout:
        segments = tuple(builder.build() for builder in self.segments)
        return Rollout(
            task=self.task,
            index=self.index,
            seed=self.seed,
            segments=tuple(segment for segment in segments if any(segment.loss_mask)) or segments[:1],
            messages=tuple(self.messages),
            text=self.text,
            ending=self.ending,
            turn_count=self.turn_count,
            scores=tuple(Score(name=n, value=v, outcome=Outcome.SCORED) for n, v in self.scores.items()),
            turn_scores=tuple(self.turn_scores),
        )
