"""Log-probability and entropy of trained tokens, tile by tile: memory does not grow with tokens x vocabulary.

For logits z = s h W^T + b, p = softmax(z), target y:

    d logprob / d h = s (W_y - p W),      d logprob / d W = s (e_y - p) h^T,
    entropy = -sum_j p_j log p_j,         d entropy / d z_j = -p_j (log p_j + entropy).

The first is formed in the forward while the tile is in cache, so a frozen head (LoRA) needs no backward pass over the
vocabulary at all. For d W the probabilities of as many tokens as ``keep_bytes`` allows are kept, the rest recomputed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from posttrain.errors import ModelError

TILE_BYTES = 32 << 20
"""Default size of one tile of logits."""
KEEP_BYTES = 256 << 20
"""Default limit of the probabilities kept for the backward pass."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Head:
    """How a model turns a hidden state into logits: softcap * tanh(scale * (h W^T + b) / softcap)."""

    module: torch.nn.Module
    """The model's own output layer."""
    weight: torch.Tensor | None
    """[vocabulary, hidden]; None if the layer is not a plain linear one: then the layer itself is called."""
    bias: torch.Tensor | None = None
    """[vocabulary]."""
    scale: float = 1.0
    """Factor on the logits."""
    softcap: float | None = None
    """Bound of the logits."""


def find_head(model: Any) -> Head:
    """Describe the head of a transformers causal language model; `posttrain.models.selftest` proves it right."""
    module = model.get_output_embeddings()
    if module is None:
        raise ModelError(f"{type(model).__name__} has no output layer; posttrain trains causal language models")
    config = model.config.get_text_config()
    plain = type(module) is torch.nn.Linear
    return Head(
        module=module,
        weight=module.weight if plain else None,
        bias=module.bias if plain else None,
        scale=float(getattr(config, "logit_scale", None) or 1.0)
        / float(getattr(config, "logits_scaling", None) or 1.0),
        softcap=getattr(config, "final_logit_softcapping", None),
    )


def token_logprobs(
    hidden: torch.Tensor,
    head: Head,
    targets: torch.Tensor,
    *,
    temperature: float = 1.0,
    tile_bytes: int = TILE_BYTES,
    keep_bytes: int = KEEP_BYTES,
    entropy_gradient: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (log-probability of each target, entropy), [N] each, in nats, float32 or wider.

    ``hidden`` [N, hidden size], ``targets`` int64 [N]. ``temperature`` divides the logits as in sampling; 0 (greedy)
    counts as 1. The entropy carries a gradient only if asked. Logits of -inf have probability 0.
    """
    if hidden.ndim != 2 or targets.shape != hidden.shape[:1]:
        raise ValueError(
            f"expected hidden [N, H] and targets [N], got {tuple(hidden.shape)} and {tuple(targets.shape)}"
        )
    job = _Job(
        head=head,
        temperature=temperature or 1.0,
        tile_bytes=tile_bytes,
        keep_bytes=keep_bytes,
        entropy_gradient=entropy_gradient,
        training=torch.is_grad_enabled(),
    )
    if head.weight is None:
        return _through_module(hidden, targets, job)
    apply: Callable[..., tuple[torch.Tensor, torch.Tensor]] = _TokenLogprobs.apply
    return apply(hidden, head.weight, head.bias, targets, job)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Job:
    """Everything about one call that is not a tensor."""

    head: Head
    temperature: float
    tile_bytes: int
    keep_bytes: int
    entropy_gradient: bool
    training: bool

    @property
    def linear(self) -> bool:
        """True if the gradient of a log-probability needs nothing but p: no softcap, no entropy gradient."""
        return self.head.softcap is None and not self.entropy_gradient

    @property
    def factor(self) -> float:
        return self.head.scale / self.temperature

    def tiles(self, count: int, vocabulary: int, item: int, start: int = 0) -> Iterator[slice]:
        """Cut tokens start..count into tiles of at most ``tile_bytes``."""
        step = max(1, self.tile_bytes // (vocabulary * item))
        return (slice(at, min(at + step, count)) for at in range(start, count, step))

    def log_softmax(
        self, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return (log-probabilities [n, vocabulary], slope of the softcap or None), in float32 or float64."""
        logits, slope = self.logits(hidden, weight, bias)
        return torch.log_softmax(logits, -1), slope

    def logits(
        self, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return (tempered logits [n, vocabulary], slope of the softcap or None), in float32 or float64."""
        wide = _wide(weight.dtype)
        logits = torch.nn.functional.linear(hidden, weight, bias).to(wide)
        slope = None
        if self.head.softcap is not None:
            bent = logits.mul_(self.head.scale / self.head.softcap).tanh_()
            slope = 1 - bent * bent
            logits = bent.mul_(self.head.softcap / self.temperature)
        elif self.factor != 1.0:
            logits.mul_(self.factor)
        return logits, slope


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _safe(logs: torch.Tensor) -> torch.Tensor:
    """Bound log-probabilities where the probability is exactly 0 anyway, so that 0 log 0 is 0 and not NaN."""
    return logs.clamp_min(-746.0 if logs.dtype == torch.float64 else -104.0)


def _entropy(logs: torch.Tensor, probabilities: torch.Tensor, bounded: bool) -> torch.Tensor:
    """Return -sum p log p per row; ``bounded`` tells that no log is -inf (only a bias can make one)."""
    logs = logs if bounded else _safe(logs)
    return -torch.bmm(probabilities.unsqueeze(1), logs.unsqueeze(2)).flatten()


class _TokenLogprobs(torch.autograd.Function):
    """The head as one differentiable function of hidden states, weight and bias."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        job: _Job,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        count, vocabulary, wide = len(hidden), len(weight), _wide(weight.dtype)
        early = job.training and job.linear
        unit = torch.empty_like(hidden) if early and ctx.needs_input_grad[0] else None
        kept = hidden.new_empty((_kept_rows(ctx, job, count, weight), vocabulary), dtype=wide)
        logprobs, entropy, totals = (hidden.new_empty(count, dtype=wide) for _ in range(3))
        for tile in job.tiles(count, vocabulary, wide.itemsize):
            logits, _ = job.logits(hidden[tile], weight, bias)
            logits.sub_(logits.amax(-1, keepdim=True))
            masses = torch.exp(logits, out=kept[tile] if tile.stop <= len(kept) else None)
            total = torch.sum(masses, -1, out=totals[tile])
            logprobs[tile] = logits.gather(1, targets[tile, None]).squeeze(1) - total.log()
            entropy[tile] = _entropy(logits, masses, bias is None).div_(total).add_(total.log())
            if unit is not None:
                mean = (masses.to(weight.dtype) @ weight).div_(total.to(weight.dtype)[:, None])
                torch.sub(weight[targets[tile]], mean, out=unit[tile])
        ctx.save_for_backward(hidden, weight, bias, targets, unit, kept, totals[: len(kept)])
        ctx.job = job
        if not job.entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_logprobs: torch.Tensor, grad_entropy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, targets, unit, kept, totals = ctx.saved_tensors
        needs = ctx.needs_input_grad[:3]
        if ctx.job.linear:
            push = (grad_logprobs * ctx.job.factor).to(hidden.dtype)
            grads = _linear_gradients(ctx.job, push, hidden, weight, bias, targets, kept, totals, needs)
            grads[0] = unit * push[:, None] if unit is not None else None
        else:
            grads = _general_gradients(ctx.job, grad_logprobs, grad_entropy, hidden, weight, bias, targets, needs)
        return (*grads, None, None)


def _kept_rows(ctx: Any, job: _Job, count: int, weight: torch.Tensor) -> int:
    """Return for how many tokens, in whole tiles, probabilities are kept: those that d weight can use."""
    if not (job.training and job.linear and any(ctx.needs_input_grad[1:3])):
        return 0
    row = len(weight) * _wide(weight.dtype).itemsize
    room = min(count, job.keep_bytes // row)
    if room == count:
        return count
    step = max(1, job.tile_bytes // row)
    return room // step * step


def _linear_gradients(
    job: _Job,
    push: torch.Tensor,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    kept: torch.Tensor,
    totals: torch.Tensor,
    needs: tuple[bool, ...],
) -> list[torch.Tensor | None]:
    """Gradients to weight and bias where dz = push (e_y - p); the one to hidden was formed in the forward.

    ``kept`` are masses, that is probabilities times the row's ``totals``.
    """
    pushed = hidden * push[:, None]
    grad_weight = torch.zeros_like(weight) if needs[1] else None
    grad_bias = torch.zeros_like(bias) if bias is not None and needs[2] else None
    rest = job.tiles(len(hidden), len(weight), kept.itemsize, start=len(kept))
    for tile in [slice(0, len(kept)), *rest] if any(needs[1:]) else []:
        stored = tile.stop <= len(kept)
        wide = kept if stored else job.log_softmax(hidden[tile], weight, bias)[0].exp_()
        masses = wide.to(weight.dtype)
        factor = push[tile] / totals[tile].to(push.dtype) if stored else push[tile]
        if grad_weight is not None:
            grad_weight.addmm_(masses.T, hidden[tile] * factor[:, None], alpha=-1)
        if grad_bias is not None:
            grad_bias.addmv_(masses.T, factor, alpha=-1)
    if grad_weight is not None:
        grad_weight.index_add_(0, targets, pushed)
    if grad_bias is not None:
        grad_bias.index_add_(0, targets, push)
    return [None, grad_weight, grad_bias]


def _general_gradients(
    job: _Job,
    grad_logprobs: torch.Tensor,
    grad_entropy: torch.Tensor,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    needs: tuple[bool, ...],
) -> list[torch.Tensor | None]:
    """Gradients through softcap and entropy: each tile is recomputed and its dz written out."""
    grads = [
        None if x is None or not need else torch.zeros_like(x)
        for x, need in zip((hidden, weight, bias), needs, strict=True)
    ]
    for tile in job.tiles(len(hidden), len(weight), _wide(weight.dtype).itemsize):
        logs, slope = job.log_softmax(hidden[tile], weight, bias)
        dz = _logit_gradient(logs, targets[tile], grad_logprobs[tile], grad_entropy[tile], job)
        dz.mul_(job.factor)
        if slope is not None:
            dz.mul_(slope)
        dz = dz.to(weight.dtype)
        if grads[0] is not None:
            torch.mm(dz, weight, out=grads[0][tile])
        if grads[1] is not None:
            grads[1].addmm_(dz.T, hidden[tile])
        if grads[2] is not None:
            grads[2].add_(dz.sum(0))
    return grads


def _logit_gradient(
    logs: torch.Tensor, targets: torch.Tensor, push: torch.Tensor, pull: torch.Tensor, job: _Job
) -> torch.Tensor:
    """Return d loss / d (tempered logits) [n, vocabulary] from the gradients of log-probability and entropy."""
    probabilities = logs.exp()
    if job.entropy_gradient:
        safe = _safe(logs)
        entropy = _entropy(safe, probabilities, True)
        dz = probabilities * (safe + entropy[:, None]).mul_(-pull[:, None]).sub_(push[:, None])
    else:
        dz = probabilities.mul_(-push[:, None])
    return dz.scatter_add_(1, targets[:, None], push[:, None])


def _through_module(hidden: torch.Tensor, targets: torch.Tensor, job: _Job) -> tuple[torch.Tensor, torch.Tensor]:
    """Call the model's own output layer on tiles through autograd, with nothing of the tile kept."""

    def tile_of(part: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = job.head.module(part)
        logits = logits.to(_wide(logits.dtype)) * job.head.scale
        if job.head.softcap is not None:
            logits = torch.tanh(logits / job.head.softcap) * job.head.softcap
        logs = torch.log_softmax(logits / job.temperature, -1)
        entropy = -(logs.exp() * _safe(logs)).sum(-1)
        return logs.gather(1, wanted[:, None]).squeeze(1), entropy if job.entropy_gradient else entropy.detach()

    with torch.no_grad():
        vocabulary = job.head.module(hidden[:1]).shape[-1]
    item = _wide(hidden.dtype).itemsize
    tiles = list(job.tiles(len(hidden), vocabulary, item)) or [slice(0, 0)]
    parts = [checkpoint(tile_of, hidden[tile], targets[tile], use_reentrant=False) for tile in tiles]
    return torch.cat([p for p, _ in parts]), torch.cat([e for _, e in parts])
