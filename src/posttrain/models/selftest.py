"""Finds out, once per loaded model, which layouts give its own numbers: random ids, log-probabilities and a gradient.

Each layout is compared with the model's plain forward over single samples under its own attention implementation.
What differs or raises is dropped with a reason: shared prompts are wrong for recurrent (linear attention) layers, for
example, and softcapped attention leaves only padded rows under the model's own implementation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from posttrain.errors import ModelError
from posttrain.models.attention import NAME, AttentionPlan, UnsupportedAttention, attend_rows, use
from posttrain.models.heads import Head, find_head
from posttrain.models.layout import place_packed, place_padded, place_shared
from posttrain.models.rows import tensors
from posttrain.models.scoring import Scorer, causal_model
from posttrain.types import Layout, Microbatch, Sample

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}
"""Largest relative difference that counts as equal; transformers' norms compute in float32 whatever the weights are."""
COARSE = 5e-2
"""The same for 16-bit weights."""
RAISED = (UnsupportedAttention, RuntimeError, TypeError, ValueError, LookupError, AttributeError)
"""What a model may raise on an input that it cannot take."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Support:
    """What the self-test found."""

    layouts: frozenset[Layout]
    """Layouts that give the model's own numbers; padded is always there."""
    reason: str
    """Why the others do not; empty if nothing is missing."""
    implementation: str
    """Attention implementation to train under."""
    head: Head
    """The head, proved equal to the model's own logits."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Numbers:
    logprobs: list[torch.Tensor]
    gradients: list[torch.Tensor]


def supported_layouts(model: Any) -> Support:
    """Test the layouts on the loaded model; leaves weights, gradients and settings as they were.

    Raises ModelError if not even padded rows give the log-probabilities of the model's own forward.
    """
    inner = causal_model(model)
    own = inner.config._attn_implementation
    samples = probe_samples(inner)
    try:
        with torch.enable_grad(), evaluation(model):
            truth = _plain_numbers(inner, samples)
            head = _proved_head(inner, own, samples, truth)
            return _compare_layouts(inner, own, head, samples, truth)
    finally:
        use(inner, own)


def _compare_layouts(inner: Any, own: str, head: Head, samples: list[Sample], truth: _Numbers) -> Support:
    scorer = Scorer(model=inner, head=head, implementation=NAME)
    reason = _static_reason(inner) or _difference(scorer, place_padded(samples), samples, truth)
    if reason:
        reason = f"only padded rows under the model's own attention ('{own}'): {reason}"
        return Support(layouts=frozenset(["padded"]), reason=reason, implementation=own, head=head)
    families = [[s for s in samples if s.group == group] for group in sorted({s.group for s in samples})]
    trials: dict[Layout, Callable[[], Microbatch]] = {
        "packed": lambda: place_packed(samples),
        "shared": lambda: place_shared(families),
    }
    mixes = _mixes_neighbours(inner)
    found = {name: mixes or _difference(scorer, place(), samples, truth) for name, place in trials.items()}
    return Support(
        layouts=frozenset(["padded", *(name for name, why in found.items() if not why)]),
        reason="; ".join(f"no {name} layout: {why}" for name, why in found.items() if why),
        implementation=NAME,
        head=head,
    )


def probe_samples(model: Any) -> list[Sample]:
    """Return two groups of ragged samples with random ids, longer than a small sliding window."""
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None) or 0
    longer = window if window <= 64 else 0
    random = np.random.default_rng(0)
    choices = np.setdiff1d(np.arange(config.vocab_size), [config.pad_token_id or 0])
    shapes = [(6 + longer, (5, 1, 3)), (3, (4, 2))]
    prompts = [random.choice(choices, size) for size, _ in shapes]
    return [
        _sample(group, index, prompts[group], random.choice(choices, length))
        for group, (_, lengths) in enumerate(shapes)
        for index, length in enumerate(lengths)
    ]


def _sample(group: int, index: int, prompt: np.ndarray, completion: np.ndarray) -> Sample:
    size = len(prompt) + len(completion)
    return Sample(
        ids=np.concatenate([prompt, completion]).astype(np.int64),
        loss_mask=np.arange(size) >= len(prompt),
        prompt_length=len(prompt),
        group=group,
        rollout=index,
        advantages=np.zeros(size),
        rollout_logprobs=np.full(size, np.nan),
        versions=np.full(size, -1),
        turns=np.full(size, -1),
    )


def _plain_numbers(inner: Any, samples: list[Sample]) -> _Numbers:
    """Score single samples with the model's own forward and logits."""
    device = next(inner.parameters()).device
    logprobs = []
    for sample in samples:
        ids = torch.as_tensor(sample.ids, device=device)
        logits = inner(input_ids=ids[None], use_cache=False).logits[0]
        logs = torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), -1)
        places = torch.as_tensor(np.flatnonzero(sample.loss_mask), device=device)
        logprobs.append(logs[places - 1, ids[places]])
    return _Numbers(logprobs=[x.detach() for x in logprobs], gradients=_gradients(inner, logprobs))


def _gradients(inner: Any, logprobs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Gradients of a weighted sum to the first, middle and last parameter that trains."""
    trainable = [p for p in inner.parameters() if p.requires_grad]
    chosen = [trainable[i] for i in sorted({0, len(trainable) // 2, len(trainable) - 1})] if trainable else []
    if not chosen:
        return []
    total = sum(((x * torch.arange(1, len(x) + 1, device=x.device)).sum() for x in logprobs), torch.zeros(()))
    found = torch.autograd.grad(total, chosen, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(chosen, found, strict=True)]


def _proved_head(inner: Any, own: str, samples: list[Sample], truth: _Numbers) -> Head:
    """Return the described head if it gives the model's own numbers, else the one that calls the model's layer."""
    described = find_head(inner)
    why = ""
    for head in (described, dataclasses.replace(described, weight=None, bias=None)):
        scorer = Scorer(model=inner, head=head, implementation=own)
        why = _difference(scorer, place_padded(samples), samples, truth)
        if not why:
            return head
    raise ModelError(
        f"{type(inner).__name__}: padded rows do not give the log-probabilities of its own forward ({why}). "
        "posttrain needs a causal language model whose logits are one output layer, scaled and softcapped by the config"
    )


def _difference(scorer: Scorer, microbatch: Microbatch, samples: list[Sample], truth: _Numbers) -> str:
    """Return how the microbatch's numbers differ from the plain ones, in a few words, or nothing."""
    try:
        mine, watched = _measure(scorer, microbatch, samples)
    except RAISED as error:
        return f"{type(error).__name__}: {error}".split("\n", 1)[0]
    if scorer.implementation == NAME and not watched.windows and _has_window(scorer.model):
        return "its sliding window is not handed to the attention function"
    allowed = TOLERANCE.get(next(scorer.model.parameters()).dtype, COARSE)
    apart = {
        "log-probabilities": _relative(mine.logprobs, truth.logprobs),
        "gradients": _relative(mine.gradients, truth.gradients),
    }
    wrong = [
        f"{name} are off by {far:.1e} (allowed {allowed:.0e})" for name, far in apart.items() if not far <= allowed
    ]
    return next(iter(wrong), "")


def _measure(scorer: Scorer, microbatch: Microbatch, samples: list[Sample]) -> tuple[_Numbers, _Watched]:
    """Return the numbers of the microbatch, sample by sample in the given order."""
    rows = tensors(microbatch, next(scorer.model.parameters()).device)
    watched = _Watched(rows.plan)
    flat, _ = scorer.score(rows, plan=watched if scorer.implementation == NAME else None)
    parts = torch.split(flat, [int(sample.loss_mask.sum()) for sample in microbatch.samples])
    by_sample = {id(sample): part for sample, part in zip(microbatch.samples, parts, strict=True)}
    logprobs = [by_sample[id(sample)] for sample in samples]
    gradients = _gradients(scorer.model, logprobs)
    return _Numbers(logprobs=[x.detach() for x in logprobs], gradients=gradients), watched


def _relative(mine: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    """Return the largest difference relative to the largest entry."""
    largest = max((float(x.abs().max()) for x in theirs), default=0.0)
    worst = max((float((a - b).abs().max()) for a, b in zip(mine, theirs, strict=True)), default=0.0)
    return worst / largest if largest else worst


def _static_reason(inner: Any) -> str:
    """Name what a short random test cannot see."""
    use(inner, NAME)
    if inner.config._attn_implementation != NAME:
        return "the model does not take registered attention functions"
    if getattr(inner.config.get_text_config(), "attention_chunk_size", None):
        return "it attends in chunks"
    return ""


def _mixes_neighbours(inner: Any) -> str:
    """Name a layer that carries a state along the row, past the end of a sample: random weights may hide it."""
    kinds = set(getattr(inner.config.get_text_config(), "layer_types", None) or ()) - {
        "full_attention",
        "sliding_attention",
    }
    if kinds:
        return f"it has layers of type {', '.join(sorted(kinds))}"
    if any(isinstance(module, torch.nn.Conv1d) for module in inner.modules()):
        return "it has convolutions along the row"
    return ""


def _has_window(model: Any) -> bool:
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    return bool(getattr(config, "sliding_window", None)) and (kinds is None or "sliding_attention" in kinds)


class _Watched:
    """A plan that notes the sliding windows it is asked for."""

    def __init__(self, plan: AttentionPlan | None) -> None:
        self.plan = plan
        self.windows: set[int] = set()

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        *,
        window: int | None = None,
    ) -> torch.Tensor:
        if window is not None:
            self.windows.add(window)
        if self.plan is None:
            return attend_rows(query, key, value, scaling, window=window)
        return self.plan.attend(module, query, key, value, scaling, window=window)


@contextmanager
def evaluation(model: Any) -> Iterator[None]:
    """Switch dropout off inside, and put every module's mode back afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
