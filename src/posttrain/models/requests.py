"""Completions in the making: what was asked, what was sampled so far, and when it is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from posttrain.functional.sampling import Parameter
from posttrain.models.cache import Prefix
from posttrain.types import Completion, Ending, Sampling

_TOKENS_PER_CHARACTER = 4
"""Byte-level tokenizers need up to four tokens for one character."""


@dataclass(eq=False, slots=True)
class Shared:
    """A computed prompt and how many rows use it."""

    prefix: Prefix
    users: int = 0

    @property
    def logits(self) -> Tensor:
        """[V]: what the model says after the prompt."""
        assert self.prefix.logits is not None
        return self.prefix.logits


@dataclass(eq=False, kw_only=True, slots=True)
class Row:
    """One completion in the making."""

    prompt: tuple[int, ...]
    """Prompt ids."""
    sampling: Sampling
    """How to draw."""
    seed: int
    """Seed of its draws."""
    limit: int
    """The most tokens it may get, the window considered."""
    future: asyncio.Future[Completion]
    """Where the caller waits; done means that the row is over."""
    ids: list[int] = field(default_factory=list)
    """Sampled so far."""
    logprobs: list[float] = field(default_factory=list)
    """Log-probability of each."""
    versions: list[int] = field(default_factory=list)
    """Version of the weights that sampled each."""
    shared: Shared | None = None
    """Its prompt, once computed."""

    @property
    def length(self) -> int:
        """Tokens of prompt and completion together."""
        return len(self.prompt) + len(self.ids)

    def append(self, token: int, logprob: float, version: int) -> None:
        """Take a sampled token."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)

    def finish(self, ending: Ending) -> None:
        """Hand the completion to the caller, unless the caller has gone away."""
        if not self.future.done():
            completion = Completion(
                ids=tuple(self.ids),
                rollout_logprobs=tuple(self.logprobs),
                versions=tuple(self.versions),
                ending=ending,
            )
            self.future.set_result(completion)

    def fail(self, error: BaseException | None) -> None:
        """Hand an error to the caller; without one the call is cancelled."""
        if self.future.done():
            return
        if error is None:
            self.future.cancel()
        else:
            self.future.set_exception(error)


def ending_of(row: Row, stop_ids: Collection[int], tokenizer: Any) -> Ending | None:
    """How the row ended with its last token, or None: a stop token, then a stop string, then the limit."""
    if row.ids[-1] in stop_ids:
        return Ending.STOP
    if row.sampling.stop and reached_stop_string(row.ids, row.sampling.stop, tokenizer):
        return Ending.STOP_STRING
    return Ending.LENGTH if len(row.ids) >= row.limit else None


def reached_stop_string(ids: Sequence[int], stop: Sequence[str], tokenizer: Any) -> bool:
    """True if a stop string stands in the text of the last tokens; only as many are decoded as the longest may span."""
    tail = _TOKENS_PER_CHARACTER * max(map(len, stop)) + _TOKENS_PER_CHARACTER
    text = tokenizer.decode(list(ids[-tail:]), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return any(string in text for string in stop)


def _signed(seed: int) -> int:
    """The seed's low 64 bits as an int64."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """Seeds and sampling parameters of rows that are drawn together; a parameter equal in all rows is one number."""

    seeds: Tensor
    temperature: Parameter
    top_p: Parameter
    top_k: Parameter
    min_p: Parameter

    @classmethod
    def of(cls, rows: Sequence[Row | None], device: torch.device) -> Draws:
        """Gather them; dead rows (None) draw like the first live one."""
        first = next(row for row in rows if row is not None)
        filled = [first if row is None else row for row in rows]

        def gather(read: Callable[[Sampling], float]) -> Parameter:
            values = [read(row.sampling) for row in filled]
            if len(set(values)) == 1:
                return values[0]
            return torch.tensor(values, dtype=torch.float64, device=device)

        return cls(
            seeds=torch.tensor([_signed(row.seed) for row in filled], dtype=torch.int64, device=device),
            temperature=gather(lambda sampling: sampling.temperature),
            top_p=gather(lambda sampling: sampling.top_p),
            top_k=gather(lambda sampling: sampling.top_k),
            min_p=gather(lambda sampling: sampling.min_p),
        )
