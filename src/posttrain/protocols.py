"""The sockets: what an engine, environment, reward, algorithm, learner and weight sync must offer.

Loops and stations see only these; a plug is any object that has these methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from posttrain.types import (
    Completion,
    Group,
    Loss,
    Message,
    Microbatch,
    Needs,
    Receipt,
    Rollout,
    Sample,
    Sampling,
    Score,
    Stat,
    StepStats,
    Task,
    TokenBatch,
)

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import torch

NamedTensors = Iterable[tuple[str, "torch.Tensor"]]
"""Parameter names and tensors, in a fixed order."""

LossFunction = Callable[[TokenBatch, "torch.Tensor", "torch.Tensor | None", "torch.Tensor | None"], Loss]
"""``loss(batch, logprobs, entropy, values)``: all tensors [N] over the trained tokens."""


class Engine(Protocol):
    """Generates completions and carries a version of the weights."""

    @property
    def version(self) -> int:
        """Version of the weights that sample now."""
        ...

    @property
    def window(self) -> int:
        """The most tokens a row may have, prompt and completion together."""
        ...

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, seed: int) -> Completion:
        """Sample one completion.

        The draw for the token at row index i depends only on (seed, i) and on the model, never on what
        else is being generated.
        """
        ...

    async def load(self, tensors: NamedTensors, version: int) -> None:
        """Take over weights and call them ``version``."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvStep:
    """An environment's answer to one completion."""

    reply: tuple[Message, ...] = ()
    """Messages that follow, for example a tool's output."""
    terminated: bool = False
    """The task is over."""
    truncated: bool = False
    """A limit ended it before it was over."""
    scores: Mapping[str, float] | None = None
    """Scores by name that the environment itself gives."""


class Env(Protocol):
    """One attempt at one task: single use, asynchronous."""

    async def reset(self, task: Task) -> tuple[Message, ...]:
        """Return the opening messages."""
        ...

    async def step(self, message: Message) -> EnvStep:
        """Answer the policy's message."""
        ...

    async def close(self) -> None:
        """Free what the attempt holds."""
        ...


class Reward(Protocol):
    """Scores rollouts of one group; a crash or time-out is an outcome, never a number."""

    name: str
    """Name of the part."""

    async def score(self, rollouts: Sequence[Rollout], task: Task) -> Sequence[Score]:
        """Return one score per rollout, in order."""
        ...


class Algorithm(Protocol):
    """Turns scored groups into advantages, and a token batch into a loss."""

    needs: Needs
    """What it must be given."""

    def keep(self, group: Group) -> bool:
        """False drops the group before the batch is built (dynamic sampling)."""
        ...

    def advantages(self, groups: Sequence[Group]) -> list[list[np.ndarray]]:
        """Return, per group and rollout, float64 advantages: shape [] (whole rollout) or [sampled tokens]."""
        ...

    def loss(
        self,
        batch: TokenBatch,
        logprobs: torch.Tensor,
        entropy: torch.Tensor | None,
        values: torch.Tensor | None,
    ) -> Loss:
        """Return the weighted sum of token losses, differentiable in ``logprobs`` (and entropy, values)."""
        ...


class Refiner(Protocol):
    """What an algorithm may offer besides: it is asked with ``isinstance``-free ``getattr``, so each is optional."""

    def extend(self, samples: Sequence[Sample]) -> list[Sample]:
        """Once per batch, before any log-probability is computed: the samples and further rows to compare them with."""
        ...

    def refine(self, samples: Sequence[Sample]) -> list[Sample]:
        """Once per batch, when old, reference and teacher log-probabilities and values are there: final advantages,
        returns, loss masks (a token taken out counts nowhere) and mismatch weights.
        """
        ...

    def numbers(self) -> Mapping[str, float]:
        """At the end of each batch: canonical metric names to numbers that no microbatch alone can give."""
        ...

    def observe(self, numbers: Mapping[str, float]) -> None:
        """After each batch: the step's canonical numbers, for controllers."""
        ...

    def state(self) -> dict[str, float]:
        """What a checkpoint must keep of the algorithm."""
        ...

    def restore(self, state: Mapping[str, float]) -> None:
        """Take over what ``state`` gave."""
        ...


class ScoreAlgorithm(Algorithm, Protocol):
    """An algorithm whose values are scores: it says at which tokens they are read."""

    def refine(self, samples: Sequence[Sample]) -> list[Sample]:
        """Rows that are trained where a score is read."""
        ...


class Learner(Protocol):
    """Trains: owns the weights, the optimizer and the schedule."""

    @property
    def version(self) -> int:
        """Number of optimizer steps that changed the weights."""
        ...

    def logprobs(self, microbatch: Microbatch, *, reference: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return float64 (log-probability, entropy) [N] of the trained tokens, without gradient."""
        ...

    def forward_backward(self, microbatch: Microbatch, loss: LossFunction) -> Mapping[str, Stat]:
        """Add the loss's gradient; return its stats and the watched numbers."""
        ...

    def step(self) -> StepStats:
        """Clip, update, clear the gradient, advance the schedule."""
        ...

    def named_tensors(self) -> NamedTensors:
        """The weights as an engine loads them."""
        ...

    def save(self, folder: Path) -> None:
        """Write weights, optimizer and schedule so that ``load`` continues bit for bit."""
        ...

    def load(self, folder: Path) -> None:
        """Take over what ``save`` wrote."""
        ...


class ValueLearner(Learner, Protocol):
    """A learner with a critic."""

    def values(self, microbatch: Microbatch) -> np.ndarray:
        """Return float64 [N]: the critic's value of the state before each trained token, without gradient."""
        ...

    def trained_tensors(self) -> NamedTensors:
        """Every tensor that has a gradient: the policy's weights, then the critic's own."""
        ...


class WeightSync(Protocol):
    """Carries the learner's weights to engines and proves that they arrived."""

    async def carry(self, learner: Learner, engines: Sequence[Engine], version: int) -> Receipt:
        """Make every engine sample with the learner's weights."""
        ...


class Packer(Protocol):
    """Lays samples out in microbatches; order inside the whole batch does not matter to the loss."""

    def __call__(self, samples: Sequence[Sample]) -> list[Microbatch]:
        """Return microbatches that cover every sample once."""
        ...
