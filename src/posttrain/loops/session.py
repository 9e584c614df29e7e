"""What both loops hold: the sockets, the state a checkpoint keeps, the records, progress and the wish to stop."""

from __future__ import annotations

import resource
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from posttrain.config import Recipe
from posttrain.errors import Diverged
from posttrain.loops.numbers import pass_rates
from posttrain.loops.stop import Stop
from posttrain.loops.update import Update
from posttrain.protocols import Algorithm, Engine, Env, Learner, Packer, WeightSync
from posttrain.records.journal import Journal
from posttrain.rollouts.rubric import Rubric
from posttrain.tasks.chat import Chat
from posttrain.tasks.curriculum import Rests
from posttrain.tasks.order import TaskOrder
from posttrain.tasks.taskset import TaskSet
from posttrain.types import Group, Sample

LOSSES = 5
"""Batches whose mean loss is compared with run.stop_at_loss."""


class Progress(Protocol):
    """Whoever shows the run to a person."""

    def begin(self, first: int, total: int) -> None:
        """The loop starts at batch ``first`` of ``total``."""
        ...

    def station(self, name: str) -> None:
        """A station of the step begins."""
        ...

    def rollouts(self, done: int, total: int) -> None:
        """So many of the step's rollouts are finished."""
        ...

    def sample(self, group: Group) -> None:
        """A finished group, to show one of its rollouts."""
        ...

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step is recorded."""
        ...

    def note(self, text: str) -> None:
        """Something worth reading."""
        ...

    def end(self) -> None:
        """The loop is over, however it ended."""
        ...


@dataclass(kw_only=True, slots=True)
class State:
    """All that a resumed run needs beside the learner; everything random is derived from position and seed."""

    step: int = 0
    """Batches trained."""
    position: int = 0
    """Next place in the task order."""
    nonfinite: int = 0
    """Non-finite optimizer steps in a row."""

    def as_dict(self) -> dict[str, int]:
        """Plain values for the checkpoint."""
        return asdict(self)


@dataclass(kw_only=True, slots=True)
class Session:
    """One run in progress."""

    recipe: Recipe
    algorithm: Algorithm
    learner: Learner
    engine: Engine
    weight_sync: WeightSync
    pack: Packer
    chat: Chat
    tasks: TaskSet
    order: TaskOrder
    journal: Journal
    progress: Progress
    rubric: Rubric | None = None
    make_env: Callable[[], Env] | None = None
    evaluate: Callable[[Session], Coroutine[Any, Any, Mapping[str, float]]] | None = None
    stop: Stop = field(default_factory=Stop)
    state: State = field(default_factory=State)
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=LOSSES))
    surplus: tuple[Group, ...] = ()
    rests: Rests | None = None

    @property
    def over(self) -> bool:
        """True after the last batch, or when the loss the recipe stops at is reached."""
        run = self.recipe.run
        low = run.stop_at_loss is not None and len(self.losses) == LOSSES
        return self.state.step >= run.steps or (low and sum(self.losses) / LOSSES < (run.stop_at_loss or 0.0))

    async def end_of_step(self) -> None:
        """Write a checkpoint and evaluate, where they are due."""
        run, evaluation, step = self.recipe.run, self.recipe.evaluation, self.state.step
        last = self.over
        if last or step % run.checkpoint_every == 0:
            self.checkpoint()
        due = evaluation is not None and (last or bool(evaluation.every and step % evaluation.every == 0))
        if self.evaluate is not None and due:
            await self.stop.unless_asked(self.evaluate(self))

    def checkpoint(self) -> None:
        """Write everything a resume needs."""
        self.progress.station("checkpoint")
        keep = getattr(self.algorithm, "state", dict)
        state: dict[str, Any] = {**self.state.as_dict(), "algorithm": keep()}
        if self.rests is not None:
            state["rests"] = self.rests.state()
        self.journal.checkpoint(self.state.step, state, self.learner, self.chat.tokenizer, surplus=self.surplus)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a checkpoint's state, the algorithm's part of it included."""
        known = {name: int(value) for name, value in state.items() if name in State.__slots__}
        self.state = State(**known)
        restore = getattr(self.algorithm, "restore", None)
        if restore is not None and state.get("algorithm"):
            restore(state["algorithm"])
        if self.rests is not None:
            self.rests.restore(state.get("rests", {}))

    def measure(self, groups: Sequence[Group], position: int) -> dict[str, float]:
        """Let the curriculum see the pass rates of freshly rolled groups; ``position`` is the batch's first."""
        if self.rests is None:
            return {}
        for place, rate in pass_rates(groups).items():
            self.rests.observe(self.order.index(place), self.order.epoch(place), rate)
        return {"tasks/resting": float(self.rests.count(self.order.epoch(position)))}

    def observe(self, numbers: Mapping[str, float]) -> None:
        """Let the algorithm's controllers see the finished batch."""
        getattr(self.algorithm, "observe", lambda numbers: None)(numbers)

    def count_nonfinite(self, update: Update, groups: list[Group], samples: list[Sample]) -> None:
        """Count skipped steps; after too many in a row keep the batch and raise Diverged."""
        for step in update.steps:
            self.state.nonfinite = self.state.nonfinite + 1 if step.skipped else 0
        if self.state.nonfinite >= self.recipe.run.max_nonfinite:
            kept = self.journal.keep_batch(self.state.step + 1, groups, samples)
            raise Diverged(
                f"{self.state.nonfinite} optimizer steps in a row had a gradient that is not finite; the weights were "
                f"not changed by them. The batch is kept in {kept}. Lower learner.learning_rate, or look at that batch."
            )


class Clock:
    """Times the stations of one step and tells progress which one runs."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._start = time.monotonic()
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, station: str) -> Iterator[None]:
        """Run a block as a station."""
        self._progress.station(station)
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[station] = self.seconds.get(station, 0.0) + time.monotonic() - start

    @property
    def total(self) -> float:
        """Seconds since the step began."""
        return time.monotonic() - self._start


def step_numbers(update: Update, clock: Clock, generated: float) -> dict[str, float]:
    """Canonical numbers of one step's update, speed and memory; ``generated`` counts sampled tokens."""
    numbers = {name: stat.result for name, stat in update.stats.items()}
    numbers |= {f"seconds/{name}": seconds for name, seconds in clock.seconds.items()}
    trained = numbers.get("tokens/trained", 0.0)
    numbers["tokens/computed"] = float(update.computed)
    numbers["samples/still"] = float(update.still)
    if "generate" in clock.seconds:
        numbers["tokens_per_second/generate"] = generated / max(clock.seconds["generate"], 1e-9)
    if "learn" in clock.seconds:
        numbers["tokens_per_second/train"] = trained / max(clock.seconds["learn"], 1e-9)
    if update.steps:
        numbers["grad_norm"] = update.steps[-1].grad_norm
        numbers["learning_rate"] = update.steps[-1].learning_rate
    numbers["steps/nonfinite"] = float(sum(step.skipped for step in update.steps))
    numbers["memory/peak_mb"] = peak_memory()
    return numbers


def peak_memory() -> float:
    """Most memory this process has held so far, in MB."""
    unit = 1024 * 1024 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def silent() -> Any:
    """A Progress that shows nothing."""
    return _Silent()


class _Silent:
    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: None
