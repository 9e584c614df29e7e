"""Samples on the learner's own weights, in this process: continuous batching over shared prompts.

Requests made in the same turn of the event loop are collected. One driver admits waiting requests in the order of their
submission while rows and memory allow, computes each distinct prompt once, decodes all rows together a token at a time,
retires finished rows and refills. The draw for the token at row index i is ``uniform(seed, i)``, so a completion does
not depend on what else is in the batch, up to this: products of other shapes may round the last bit of a logit
differently, which in principle can flip a draw that lies exactly on a boundary. Equal submissions give equal bits.

Weights are the learner's own tensors, so a new version is only a number (and a renewed fused copy). A ``load`` in the
middle of a generation is allowed: later tokens carry the new version; keys and values computed before stay.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from posttrain.config import Settings
from posttrain.errors import ModelError, did_you_mean
from posttrain.functional.counter import uniform
from posttrain.functional.sampling import sample
from posttrain.models.decoder import causal_model, choose_decoder
from posttrain.models.requests import Draws, Row, Shared, ending_of
from posttrain.protocols import NamedTensors
from posttrain.types import Completion, Ending, Sampling

__all__ = ["Config", "LocalEngine"]

_COMPACT_BELOW = 0.75
_NUMBERS = ("tokens", "prefill_tokens", "prefill_seconds", "decode_seconds", "peak_rows")


class Config(Settings):
    """How much is sampled together, and by which path."""

    max_rows: int = Field(128, gt=0)
    """The most completions decoded together."""
    token_budget: int = Field(32768, gt=0)
    """Places for keys and values: tokens of distinct prompts plus the most that each running row may still sample."""
    prefill_tokens: int = Field(4096, gt=0)
    """Prompt tokens computed in one forward pass; memory follows this, the result does not."""
    path: Literal["auto", "fast", "generic", "plain", "recompute"] = "auto"
    """How to decode; auto takes the fastest that passes the self-test on the loaded model."""
    forbid: tuple[int, ...] = ()
    """Token ids never sampled. The learner does not know of this: forbid only what has no probability anyway."""


class LocalEngine:
    """The embedded engine: holds the same module object as the learner."""

    def __init__(self, config: Config, model: Any, tokenizer: Any, stop_ids: Collection[int], window: int) -> None:
        self._config = config
        self._model = model
        self._inner = causal_model(model)
        self._tokenizer = tokenizer
        self._stop_ids = frozenset(stop_ids)
        self._window = window
        self._version = 0
        self._decoder, self.path, self.path_reason = choose_decoder(model, config.path, config.prefill_tokens)
        self._vocabulary = self._inner.get_input_embeddings().num_embeddings
        self._waiting: deque[Row] = deque()
        self._entering: list[Row] = []
        self._slots: list[Row | None] = []
        self._joinable: dict[tuple[int, ...], Shared] = {}
        self._draws: Draws | None = None
        self._driver: asyncio.Task[None] | None = None
        self._numbers = dict.fromkeys(_NUMBERS, 0.0)

    @property
    def version(self) -> int:
        """Version of the weights that sample now."""
        return self._version

    @property
    def window(self) -> int:
        """The most tokens a row may have, prompt and completion together."""
        return self._window

    def stats(self) -> dict[str, float]:
        """Since construction: tokens sampled, prompt tokens computed, seconds of both, most rows at once."""
        return dict(self._numbers)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, seed: int) -> Completion:
        """Sample one completion; a prompt that leaves no room in the window gives an empty one that ended by length.

        Raises ModelError for an empty prompt or ids outside the vocabulary, and whatever the model raises.
        """
        prompt = tuple(prompt_ids)
        if not prompt:
            raise ModelError("the prompt is empty: a model needs at least one token to continue")
        if not 0 <= min(prompt) <= max(prompt) < self._vocabulary:
            raise ModelError(
                f"prompt ids run from {min(prompt)} to {max(prompt)}, the model's from 0 to {self._vocabulary - 1}. "
                "Use the tokenizer that belongs to the model."
            )
        limit = min(sampling.max_new_tokens, self._window - len(prompt))
        if limit <= 0:
            return Completion(ids=(), rollout_logprobs=(), versions=(), ending=Ending.LENGTH)
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting.append(Row(prompt=prompt, sampling=sampling, seed=seed, limit=limit, future=future))
        self._ensure_driver()
        return await future

    async def load(self, tensors: NamedTensors, version: int) -> None:
        """Take over weights and call them ``version``; tensors that are the model's own need no copy.

        Raises ModelError for an unknown name or another shape, before anything is changed.
        """
        copies = self._copies(list(tensors))
        with torch.no_grad():
            for own, new in copies:
                own.copy_(new)
        self._decoder.refresh()
        for shared in self._joinable.values():
            if not shared.users:
                self._decoder.release(shared.prefix)
        self._joinable = {}
        self._version = version

    def aliases(self, tensors: NamedTensors) -> bool:
        """True if there are tensors and each of them is one of the engine's own, in the same memory."""
        given = list(tensors)
        own = self._tensors()
        return bool(given) and all(_same(own.get(name), tensor) for name, tensor in given)

    def abort(self) -> None:
        """End everything that runs or waits; what was sampled so far is returned as aborted."""
        for row in [*self._waiting, *self._live()]:
            row.finish(Ending.ABORTED)
        self._waiting.clear()
        self._retire_finished()

    # weights

    def _tensors(self) -> dict[str, Tensor]:
        """The engine's tensors by every name a learner may use: with and without an adapter wrapper's prefix."""
        named: dict[str, Tensor] = {}
        for module in (self._inner, self._model):
            named.update(module.named_parameters(remove_duplicate=False))
            named.update(module.named_buffers(remove_duplicate=False))
        return named

    def _copies(self, given: list[tuple[str, Tensor]]) -> list[tuple[Tensor, Tensor]]:
        own = self._tensors()
        copies = []
        for name, tensor in given:
            if name not in own:
                raise ModelError(f"the engine's model has no tensor '{name}'.{did_you_mean(name, own)}")
            if own[name].shape != tensor.shape:
                raise ModelError(f"'{name}' has shape {tuple(tensor.shape)}, the engine's {tuple(own[name].shape)}")
            if not _same(own[name], tensor):
                copies.append((own[name], tensor))
        return copies

    # driver

    def _ensure_driver(self) -> None:
        if self._driver is not None and self._driver.done():
            self._settle(self._driver)
        if self._driver is None:
            self._driver = asyncio.get_running_loop().create_task(self._drive())
            self._driver.add_done_callback(self._settle)

    async def _drive(self) -> None:
        """Admit, decode, retire, until nothing is left; other coroutines run between two tokens."""
        await asyncio.sleep(0)
        while self._waiting or self._slots:
            with self._computing():
                self._turn()
            await asyncio.sleep(0)

    def _computing(self) -> AbstractContextManager[Any]:
        # The own forward writes nothing into the module. Transformers modules may keep what they compute,
        # and a tensor kept from inference mode would break the learner's backward.
        return torch.inference_mode() if self.path == "fast" else torch.no_grad()

    def _settle(self, task: asyncio.Task[None]) -> None:
        """The driver has ended: if it failed, everyone who waits hears why."""
        if self._driver is not task:
            return
        self._driver = None
        if not task.cancelled() and task.exception() is None:
            return
        rows = [*self._live(), *self._entering, *self._waiting]
        self._waiting.clear()
        self._reset()
        for row in rows:
            row.fail(None if task.cancelled() else task.exception())

    def _reset(self) -> None:
        self._decoder.clear()
        self._entering, self._slots, self._joinable, self._draws = [], [], {}, None

    def _live(self) -> list[Row]:
        return [row for row in self._slots if row is not None]

    def _turn(self) -> None:
        """One token for every row, and a first one for rows that enter."""
        self._retire_finished()
        self._entering = self._choose_entering()
        if self._entering:
            self._enter(self._entering)
            self._entering = []
        live = self._live()
        if not live:
            self._finish_if_idle()
            return
        self._numbers["peak_rows"] = max(self._numbers["peak_rows"], len(live))
        if len(live) <= _COMPACT_BELOW * len(self._slots):
            self._slots = [self._slots[old] for old in self._decoder.compact()]
            self._draws = None
        self._decode(live)
        self._retire_finished()

    def _finish_if_idle(self) -> None:
        if not self._waiting:
            self._reset()

    # admission

    def _choose_entering(self) -> list[Row]:
        """Waiting rows, in order, as far as rows and memory allow; at least one if nothing runs."""
        while self._waiting and self._waiting[0].future.done():
            self._waiting.popleft()
        live = self._live()
        if not self._waiting or len(live) >= self._config.max_rows:
            return []
        prompts = {row.prompt: len(row.prompt) for row in live} | {ids: len(ids) for ids in self._joinable}
        used = sum(prompts.values()) + sum(row.limit for row in live)
        entering: list[Row] = []
        while self._waiting and len(live) + len(entering) < self._config.max_rows:
            row = self._waiting[0]
            need = row.limit + (0 if row.prompt in prompts else len(row.prompt))
            if (live or entering) and used + need > self._config.token_budget:
                break
            self._waiting.popleft()
            if not row.future.done():
                entering.append(row)
                prompts[row.prompt] = len(row.prompt)
                used += need
        return entering

    def _enter(self, rows: list[Row]) -> None:
        """Compute the prompts that are new, draw each row's first token, and give the unfinished rows their slots."""
        started = time.perf_counter()
        fresh = [ids for ids in dict.fromkeys(row.prompt for row in rows) if ids not in self._joinable]
        for prefix in self._decoder.prefill(fresh) if fresh else ():
            self._joinable[prefix.ids] = Shared(prefix)
        self._numbers["prefill_tokens"] += sum(map(len, fresh))
        logits = torch.stack([self._joinable[row.prompt].logits for row in rows])
        positions = torch.tensor([len(row.prompt) for row in rows], device=logits.device)
        self._sample(rows, logits, positions, Draws.of(rows, logits.device))
        for row in rows:  # all join before one may leave: the last user to leave takes the prompt away
            row.shared = self._joinable[row.prompt]
            row.shared.users += 1
        for row in rows:
            if row.future.done():
                self._leave(row)
            else:
                self._take_slot(row)
        self._draws = None
        self._numbers["prefill_seconds"] += time.perf_counter() - started

    def _take_slot(self, row: Row) -> None:
        assert row.shared is not None
        slot = self._decoder.add_row(row.shared.prefix)
        if slot == len(self._slots):
            self._slots.append(row)
        else:
            self._slots[slot] = row

    # decoding

    def _decode(self, live: list[Row]) -> None:
        started = time.perf_counter()
        device = self._inner.device
        if self._draws is None:
            self._draws = Draws.of(self._slots, device)
        ids = torch.tensor([0 if row is None else row.ids[-1] for row in self._slots], device=device)
        positions = torch.tensor([0 if row is None else row.length - 1 for row in self._slots], device=device)
        logits = self._decoder.decode(ids, positions, max(row.limit - len(row.ids) for row in live))
        self._sample(self._slots, logits, positions + 1, self._draws)
        self._numbers["decode_seconds"] += time.perf_counter() - started

    def _sample(self, rows: Sequence[Row | None], logits: Tensor, positions: Tensor, draws: Draws) -> None:
        """Draw a token per row and finish the rows that ended with it."""
        ids, logprobs = sample(
            logits,
            uniform(draws.seeds, positions),
            temperature=draws.temperature,
            top_p=draws.top_p,
            top_k=draws.top_k,
            min_p=draws.min_p,
            forbidden=self._config.forbid,
        )
        for row, token, logprob in zip(rows, ids.tolist(), logprobs.tolist(), strict=True):
            if row is not None:
                row.append(token, logprob, self._version)
                self._numbers["tokens"] += 1
                ending = ending_of(row, self._stop_ids, self._tokenizer)
                if ending is not None:
                    row.finish(ending)

    def _retire_finished(self) -> None:
        """Free the slots of rows that ended or whose caller has gone away."""
        for slot, row in enumerate(self._slots):
            if row is not None and row.future.done():
                self._slots[slot] = None
                self._decoder.retire(slot)
                self._draws = None
                self._leave(row)

    def _leave(self, row: Row) -> None:
        """A row stops using its prompt; the last one frees it, unless a waiting row wants it."""
        shared = row.shared
        assert shared is not None
        shared.users -= 1
        current = self._joinable.get(row.prompt) is shared
        wanted = current and any(other.prompt == row.prompt for other in self._waiting)
        if not shared.users and not wanted:
            self._decoder.release(shared.prefix)
            if current:
                del self._joinable[row.prompt]


def _same(own: Tensor | None, tensor: Tensor) -> bool:
    """True if both are one tensor in memory."""
    return own is not None and own.data_ptr() == tensor.data_ptr() and own.shape == tensor.shape
