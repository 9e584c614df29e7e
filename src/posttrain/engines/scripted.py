"""Gives scripted answers instead of sampling: for tests of loops, rewards and environments, without a model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

import torch
from pydantic import Field

from posttrain.config import Settings
from posttrain.errors import ConfigError, ModelError
from posttrain.functional.counter import uniform
from posttrain.protocols import NamedTensors
from posttrain.types import Completion, Ending, Sampling

__all__ = ["Config", "ScriptedEngine"]

_STEP = 0.001
"""Seconds between two looks at whether the calls were aborted."""


class Config(Settings):
    """The script."""

    answers: tuple[tuple[int, ...], ...] = ()
    """Token ids of the answers, in the order of the calls, from the start again when used up."""
    delay: float = Field(0.0, ge=0)
    """Seconds before each answer."""
    fail_every: int = Field(0, ge=0)
    """Every so-many-th call raises a ModelError; 0 never."""
    truncate_to: int | None = Field(None, ge=0)
    """Cut every answer off after so many tokens, as if the limit had been reached."""
    abort_after: int | None = Field(None, ge=0)
    """Abort every answer after so many tokens."""


class ScriptedEngine:
    """Answers from a list, or from a function of the prompt set as ``answer``; keeps what it was asked in ``calls``."""

    def __init__(self, config: Config, stop_ids: Collection[int] = (), window: int = 4096) -> None:
        self.config = config
        self.calls: list[tuple[tuple[int, ...], Sampling, int]] = []
        self.versions: list[int] = []
        self.answer: Callable[[tuple[int, ...]], Sequence[int]] | None = None
        self._stop_ids = frozenset(stop_ids)
        self._window = window
        self._version = 0
        self._aborts = 0

    @property
    def version(self) -> int:
        """Version given by the last load."""
        return self._version

    @property
    def window(self) -> int:
        """The most tokens a row may have."""
        return self._window

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, seed: int) -> Completion:
        """Return the next scripted answer, cut to what sampling and window allow.

        It ended by a stop token if one is its last token, else by length. The log-probabilities are made up:
        negative and the same for the same (seed, row index). Raises ModelError on a call that is to fail.
        """
        prompt = tuple(prompt_ids)
        self.calls.append((prompt, sampling, seed))
        number = len(self.calls)
        if self.config.fail_every and number % self.config.fail_every == 0:
            raise ModelError(f"scripted failure of call {number}")
        ids = tuple(self.answer(prompt) if self.answer is not None else self._scripted(number))
        aborts = self._aborts
        await self._wait(aborts)
        if self._aborts > aborts:
            return self._completion(prompt, (), seed, Ending.ABORTED)
        return self._cut(prompt, ids, sampling, seed)

    async def load(self, tensors: NamedTensors, version: int) -> None:
        """Count the version; the tensors are walked through, as a real engine would."""
        for _ in tensors:
            pass
        self._version = version
        self.versions.append(version)

    def aliases(self, tensors: NamedTensors) -> bool:
        """True: there are no weights of its own that could differ."""
        return True

    def abort(self) -> None:
        """End every call that waits, without tokens."""
        self._aborts += 1

    def _scripted(self, number: int) -> tuple[int, ...]:
        if not self.config.answers:
            raise ConfigError("the scripted engine has no answers: give answers = [[ids], …], or set engine.answer")
        return self.config.answers[(number - 1) % len(self.config.answers)]

    async def _wait(self, aborts: int) -> None:
        left = self.config.delay
        while left > 0 and self._aborts == aborts:
            await asyncio.sleep(min(left, _STEP))
            left -= _STEP
        await asyncio.sleep(0)

    def _cut(self, prompt: tuple[int, ...], ids: tuple[int, ...], sampling: Sampling, seed: int) -> Completion:
        abort = self.config.abort_after
        if abort is not None and abort < len(ids):
            return self._completion(prompt, ids[:abort], seed, Ending.ABORTED)
        limits = [sampling.max_new_tokens, max(self._window - len(prompt), 0), self.config.truncate_to]
        ids = ids[: min(limit for limit in limits if limit is not None)]
        stopped = bool(ids) and ids[-1] in self._stop_ids
        return self._completion(prompt, ids, seed, Ending.STOP if stopped else Ending.LENGTH)

    def _completion(self, prompt: tuple[int, ...], ids: tuple[int, ...], seed: int, ending: Ending) -> Completion:
        places = torch.arange(len(prompt), len(prompt) + len(ids))
        logprobs = -2.0 * uniform(torch.full_like(places, seed), places)
        return Completion(
            ids=ids,
            rollout_logprobs=tuple(logprobs.tolist()),
            versions=(self._version,) * len(ids),
            ending=ending,
        )
