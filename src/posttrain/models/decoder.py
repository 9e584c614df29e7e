"""Decoding many rows together: one socket, four ways from fast to plain, and the self-test that chooses.

``fast`` (own forward over fused weights) and ``generic`` (the model's own forward through the attention interface)
share prompts in a `posttrain.models.cache.Store`; ``plain`` keeps transformers caches; ``recompute`` keeps nothing. A
way is taken only if its log-probabilities of random rows equal those of the model's plain forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from posttrain.errors import ModelError
from posttrain.models.cache import ATTENTION_NAME, Prefix, Store
from posttrain.models.fused import FusedForward
from posttrain.models.plain_decoder import PlainDecoder, RecomputeDecoder

Path = Literal["fast", "generic", "plain", "recompute"]
"""A way to decode."""

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}
"""Largest difference of log-probabilities (relative where they are below -1) that counts as equal.

Transformers' norms compute in float32 even where the weights are float64."""
COARSE = 0.2
"""The same for 16-bit weights."""
RAISED = (ModelError, RuntimeError, TypeError, ValueError, LookupError, AttributeError)
"""What a model may raise on a way that it cannot go."""


class Decoder(Protocol):
    """Prompts go in once, rows continue them; a row is known by its slot."""

    def prefill(self, prompts: Sequence[tuple[int, ...]]) -> list[Prefix]:
        """Compute the prompts; each prefix carries the logits after its last token."""
        ...

    def add_row(self, prefix: Prefix) -> int:
        """Open a row that continues the prefix; return its slot."""
        ...

    def decode(self, ids: Tensor, positions: Tensor, columns: int) -> Tensor:
        """Feed one token per slot, int64 [S]; return logits [S, V].

        ``columns`` says how many tokens the longest row may still get; it only sizes memory.
        """
        ...

    def retire(self, slot: int) -> None:
        """End a row; its slot stays until it is reused or compacted away."""
        ...

    def compact(self) -> list[int]:
        """Drop dead slots; return the old slot of each one left."""
        ...

    def release(self, prefix: Prefix) -> None:
        """Forget a prefix that no row continues any more."""
        ...

    def refresh(self) -> None:
        """The weights have changed."""
        ...

    def clear(self) -> None:
        """Forget all rows and prefixes."""
        ...


Forward = Callable[[Tensor, Tensor, Tensor | None, Store], Tensor]
"""``forward(ids [T], positions [T], last [n] or None, store) -> logits [n or S, V]``."""


class StoreDecoder:
    """Decodes through the shared store with a given forward."""

    def __init__(self, forward: Forward, device: torch.device, prefill_tokens: int) -> None:
        self._forward = forward
        self._device = device
        self._prefill_tokens = prefill_tokens
        self.store = Store()

    def prefill(self, prompts: Sequence[tuple[int, ...]]) -> list[Prefix]:
        """Compute the prompts, several packed into one row, equal lengths beside each other."""
        prefixes = [Prefix(ids=tuple(ids)) for ids in prompts]
        chunk: list[Prefix] = []
        for prefix in sorted(prefixes, key=lambda prefix: len(prefix.ids)):
            if chunk and sum(len(p.ids) for p in chunk) + len(prefix.ids) > self._prefill_tokens:
                self._prefill_packed(chunk)
                chunk = []
            chunk.append(prefix)
        if chunk:
            self._prefill_packed(chunk)
        return prefixes

    def _prefill_packed(self, prefixes: list[Prefix]) -> None:
        self.store.place_prefixes(prefixes)
        lengths = torch.tensor([len(prefix.ids) for prefix in prefixes], device=self._device)
        ids = torch.tensor([token for prefix in prefixes for token in prefix.ids], device=self._device)
        positions = torch.cat([torch.arange(len(prefix.ids), device=self._device) for prefix in prefixes])
        logits = self._forward(ids, positions, lengths.cumsum(0) - 1, self.store)
        for prefix, row in zip(prefixes, logits, strict=True):
            prefix.logits = row

    def decode(self, ids: Tensor, positions: Tensor, columns: int) -> Tensor:
        """Feed one token per slot."""
        self.store.begin_step(columns)
        logits = self._forward(ids, positions, None, self.store)
        self.store.end_step()
        return logits

    def add_row(self, prefix: Prefix) -> int:
        """Open a row."""
        return self.store.add_row(prefix)

    def retire(self, slot: int) -> None:
        """End a row."""
        self.store.retire(slot)

    def compact(self) -> list[int]:
        """Drop dead slots."""
        return self.store.compact()

    def release(self, prefix: Prefix) -> None:
        """Forget a prefix."""
        self.store.release(prefix)

    def refresh(self) -> None:
        """Renew what the forward keeps of the weights."""
        if isinstance(self._forward, FusedForward):
            self._forward.refresh()

    def clear(self) -> None:
        """Forget everything."""
        self.store.clear()


class InterfaceForward:
    """The model's own forward, with its attention sent to the store."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __call__(self, ids: Tensor, positions: Tensor, last: Tensor | None, store: Store) -> Tensor:
        """Logits at the packed places ``last``, or of all rows if it is None."""
        shape = (-1, 1) if last is None else (1, -1)
        with attention_set_to(self._model, ATTENTION_NAME), evaluating(self._model):
            logits: Tensor = self._model(
                input_ids=ids.view(shape),
                position_ids=positions.view(shape),
                use_cache=False,
                posttrain_store=store,
                logits_to_keep=0 if last is None else last,
            ).logits
        if not store.touched:
            raise ModelError("the model does not send its attention through the transformers interface")
        return logits.squeeze(1) if last is None else logits[0]


def causal_model(model: Any) -> Any:
    """The transformers model itself, out of a peft wrapper (its adapters stay in place)."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    if not isinstance(inner, PreTrainedModel):
        raise ModelError(f"the local engine needs a transformers model; got {type(inner).__name__}")
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        raise ModelError("the local engine cannot sample with prompt-learning adapters; use LoRA")
    return inner


@contextmanager
def attention_set_to(model: Any, name: str) -> Iterator[None]:
    """Switch the model's attention implementation and put every config back as it was."""
    configs = {id(m.config): m.config for m in (model, model.base_model) if hasattr(m, "config")}
    kept = [(config, config._attn_implementation) for config in configs.values()]
    for config, _ in kept:
        config._attn_implementation = name
    try:
        yield
    finally:
        for config, implementation in kept:
            config._attn_implementation = implementation


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Evaluation mode, without touching modules that are in it already; the modes are put back."""
    training = [module for module in model.modules() if module.training] if model.training else []
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def native_attention(model: Any) -> str:
    """The model's own attention implementation: sdpa, or eager where it has no sdpa."""
    current = model.config._attn_implementation
    if current in ("sdpa", "eager"):
        return str(current)
    softcapped = getattr(model.config, "attn_logit_softcapping", None) is not None
    return "sdpa" if model._supports_sdpa and not softcapped else "eager"


def choose_decoder(model: Any, path: Path | Literal["auto"], prefill_tokens: int) -> tuple[Decoder, Path, str]:
    """Build the fastest decoder that passes the self-test; return it, its path and the reason in words.

    Raises ModelError if the asked-for path (or, for auto, every path) fails.
    """
    inner = causal_model(model)
    failures: list[str] = []
    ways: tuple[Path, ...] = ("fast", "generic", "plain", "recompute") if path == "auto" else (path,)
    for way in ways:
        try:
            decoder = _build(inner, way, prefill_tokens)
            difference = self_test(decoder, inner)
        except RAISED as error:
            failures.append(f"{way}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
            continue
        if difference <= TOLERANCE.get(inner.dtype, COARSE):
            reason = f"{way} path, log-probabilities within {difference:.1e} of the model's own forward"
            return decoder, way, "; ".join([reason, *failures])
        failures.append(f"{way}: log-probabilities differ by {difference:.1e} from the model's own forward")
    raise ModelError(f"no way to decode {inner.config.model_type} passed its self-test: {'; '.join(failures)}")


def _build(model: Any, way: Path, prefill_tokens: int) -> Decoder:
    native = native_attention(model)
    if way in ("plain", "recompute"):
        kind = PlainDecoder if way == "plain" else RecomputeDecoder
        return kind(model, lambda: attention_set_to(model, native), lambda: evaluating(model))
    if varying := _length_dependent_rope(model):
        raise ModelError(f"rotary type {varying} depends on what else is in the forward pass")
    forward = FusedForward(model) if way == "fast" else InterfaceForward(model)
    return StoreDecoder(forward, model.device, prefill_tokens)


def _length_dependent_rope(model: Any) -> str | None:
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        for kind in kinds.values() if isinstance(kinds, dict) else [kinds]:
            if kind in ("dynamic", "longrope"):
                return str(kind)
    return None


@torch.no_grad()
def self_test(decoder: Decoder, model: Any) -> float:
    """Largest (relative) difference of log-probabilities between decoder and the model's plain forward, random rows."""
    try:
        rows = _exercise(decoder, model.get_input_embeddings().num_embeddings, model.device)
    finally:
        decoder.clear()
    worst = 0.0
    for ids, heard in rows:
        with attention_set_to(model, native_attention(model)), evaluating(model):
            logits = model(input_ids=torch.tensor([ids], device=model.device), use_cache=False).logits[0]
        expected = torch.log_softmax(logits[-len(heard) :].double(), dim=-1)
        difference = torch.log_softmax(torch.stack(heard).double(), dim=-1) - expected
        relative = (difference.abs() / expected.abs().clamp(min=1.0)).max().item()
        worst = max(worst, relative if relative == relative else float("inf"))
    return worst


def _exercise(decoder: Decoder, vocabulary: int, device: torch.device) -> list[tuple[list[int], list[Tensor]]]:
    """Decode random rows with everything that happens in a run: shared prompts, a row that ends, one that enters."""
    generator = torch.Generator().manual_seed(0)

    def random_ids(count: int) -> list[int]:
        return torch.randint(vocabulary, (count,), generator=generator).tolist()

    prefixes = decoder.prefill([tuple(random_ids(length)) for length in (7, 3, 7)])
    rows: dict[int, tuple[list[int], list[Tensor]]] = {}
    finished: list[tuple[list[int], list[Tensor]]] = []

    def enter(prefix: Prefix) -> None:
        assert prefix.logits is not None
        rows[decoder.add_row(prefix)] = ([*prefix.ids, *random_ids(1)], [prefix.logits])

    def step() -> None:
        size = max(rows) + 1
        ids = [rows[slot][0][-1] if slot in rows else 0 for slot in range(size)]
        positions = [len(rows[slot][0]) - 1 if slot in rows else 0 for slot in range(size)]
        logits = decoder.decode(torch.tensor(ids, device=device), torch.tensor(positions, device=device), 4)
        for slot, (tokens, heard) in rows.items():
            heard.append(logits[slot])
            tokens.extend(random_ids(1))

    for index in (0, 0, 1):
        enter(prefixes[index])
    step()
    step()
    finished.append(rows.pop(0))
    decoder.retire(0)
    step()
    enter(prefixes[2])
    step()
    finished.append(rows.pop(1))
    decoder.retire(1)
    rows = {new: rows[old] for new, old in enumerate(decoder.compact())}
    step()
    # The last random token of a row was never fed: nothing was heard after it.
    return [(tokens[:-1], heard) for tokens, heard in [*finished, *rows.values()]]
