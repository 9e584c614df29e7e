"""Invariants of the learner's numbers: ratio, reference, engine, and every way to lay a batch out.

Each function takes real samples of the user's model and returns results; none changes a weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from posttrain.batches.build import weigh
from posttrain.batches.pack import pack, pack_whole_groups
from posttrain.checks.report import CheckResult, bounded
from posttrain.loops.update import own_logprobs
from posttrain.protocols import Algorithm, Learner, NamedTensors, Packer
from posttrain.types import Layout, Loss, Microbatch, Sample, TokenBatch

Gradient = list[torch.Tensor]


def tolerance(learner: Learner) -> float:
    """The bound for equal log-probabilities in the learner's number type; norms compute in float32 at most."""
    dtype = next(iter(learner.named_tensors()))[1].dtype
    return {torch.float64: 1e-6, torch.float32: 1e-4}.get(dtype, 5e-2)


def check_ratio(samples: Sequence[Sample], learner: Learner, packer: Packer) -> CheckResult:
    """The gradient pass and the no-gradient pass give one policy: the first step's ratio is 1."""
    recomputed = np.concatenate(
        [row[s.loss_mask] for s, row in zip(samples, own_logprobs(samples, learner, packer), strict=True)]
    )
    seen: dict[int, np.ndarray] = {}

    def record(batch: TokenBatch, logprobs: torch.Tensor, *_: object) -> Loss:
        seen[0] = logprobs.detach().double().cpu().numpy()
        return Loss(total=logprobs.sum() * 0)

    with_gradient: dict[int, np.ndarray] = {}
    for microbatch in packer(samples):
        learner.forward_backward(microbatch, record)
        used = 0
        for sample in microbatch.samples:
            count = int(sample.loss_mask.sum())
            with_gradient[id(sample)] = seen[0][used : used + count]
            used += count
    clear_gradient(learner)
    live = np.concatenate([with_gradient[id(sample)] for sample in samples])
    return bounded("first-step ratio is 1", _worst(np.exp(live - recomputed), np.ones_like(live)), tolerance(learner))


def check_reference(samples: Sequence[Sample], learner: Learner, packer: Packer) -> CheckResult:
    """Before the first step policy and reference are the same: the KL is 0."""
    own = own_logprobs(samples, learner, packer)
    reference = own_logprobs(samples, learner, packer, reference=True)
    worst = max(
        (_worst(a[s.loss_mask], b[s.loss_mask]) for s, a, b in zip(samples, own, reference, strict=True)), default=0.0
    )
    return bounded("reference KL is 0", worst, tolerance(learner))


def check_engine(samples: Sequence[Sample], learner: Learner, packer: Packer, *, filtered: bool) -> CheckResult:
    """The engine reported the log-probabilities that the learner recomputes."""
    name = "engine and learner log-probabilities agree"
    if filtered:
        return CheckResult(
            name=name, status="skip", measured="top_p, top_k or min_p cut the distribution", expected="all tokens kept"
        )
    own = own_logprobs(samples, learner, packer)
    worst = max(
        (_worst(row[s.loss_mask], s.rollout_logprobs[s.loss_mask]) for s, row in zip(samples, own, strict=True)),
        default=0.0,
    )
    return bounded(name, worst, tolerance(learner))


def check_layouts(
    samples: Sequence[Sample], learner: Learner, algorithm: Algorithm, layouts: frozenset[Layout]
) -> list[CheckResult]:
    """Loss and gradient do not depend on microbatch split, packing, prefix sharing or row order."""
    rng = np.random.default_rng(0)
    noisy = [replace(s, advantages=np.where(s.loss_mask, rng.standard_normal(), np.nan)) for s in samples]
    weighed = weigh(samples if algorithm.needs.scores else noisy, algorithm.needs.streams, constant=64.0)
    total = sum(len(sample) for sample in weighed)
    longest = max(len(sample) for sample in weighed)
    plain = _laid_out(weighed, longest * len(weighed), "padded", algorithm)
    base_loss, base = loss_and_gradient(plain, learner, algorithm)
    trials: list[tuple[str, Layout, int, list[Sample]]] = [
        ("microbatch split changes nothing", "padded", max(longest, total // 3), weighed),
        ("row order changes nothing", "padded", longest * len(weighed), weighed[::-1]),
        ("packing changes nothing", "packed", total, weighed),
        ("prefix sharing changes nothing", "shared", total, weighed),
    ]
    results = []
    for name, layout, budget, rows in trials:
        if layout not in layouts:
            results.append(CheckResult(name=name, status="skip", measured="not used on this model", expected="exact"))
            continue
        loss, gradient = loss_and_gradient(_laid_out(rows, budget, layout, algorithm), learner, algorithm)
        worst = max(abs(loss - base_loss) / max(abs(base_loss), 1e-3), gradient_distance(gradient, base))
        results.append(bounded(name, worst, tolerance(learner)))
    return results


def _laid_out(samples: Sequence[Sample], budget: int, layout: Layout, algorithm: Algorithm) -> list[Microbatch]:
    """Microbatches of one layout; rows that are compared stay together."""
    if algorithm.needs.whole_groups:
        return pack_whole_groups(samples, token_budget=budget, allowed=frozenset({layout}))
    return pack(samples, token_budget=budget, layout=layout)


def check_masked_nan(samples: Sequence[Sample], learner: Learner, algorithm: Algorithm) -> CheckResult:
    """NaN in every place that does not train changes neither loss nor gradient."""
    rng = np.random.default_rng(1)
    clean = [replace(s, advantages=np.full(len(s), rng.standard_normal())) for s in samples]
    clean = [replace(s, rollout_logprobs=np.where(s.loss_mask, s.rollout_logprobs, -1.0)) for s in clean]
    weighed = weigh(clean, algorithm.needs.streams, constant=64.0)
    dirty = [
        replace(
            s,
            advantages=np.where(s.loss_mask, s.advantages, np.nan),
            rollout_logprobs=np.where(s.loss_mask, s.rollout_logprobs, np.nan),
            token_weight={part: np.where(s.loss_mask, weight, np.nan) for part, weight in s.token_weight.items()},
        )
        for s in weighed
    ]
    budget = sum(len(sample) for sample in samples)
    loss_a, gradient_a = loss_and_gradient(pack(weighed, token_budget=budget, layout="padded"), learner, algorithm)
    loss_b, gradient_b = loss_and_gradient(pack(dirty, token_budget=budget, layout="padded"), learner, algorithm)
    worst = max(abs(loss_a - loss_b), gradient_distance(gradient_a, gradient_b))
    return bounded("NaN in masked places does no harm", worst if np.isfinite(worst) else np.inf, 0.0)


def check_equal_rewards(
    samples: Sequence[Sample], learner: Learner, algorithm: Algorithm, advantage: float
) -> CheckResult:
    """A group of equal rewards has advantage exactly 0 (the largest is given) and, forwarded, gradient exactly 0."""
    still = [replace(s, advantages=np.where(s.loss_mask, advantage, np.nan), reward=0.7) for s in samples]
    weighed = weigh(still, algorithm.needs.streams, constant=64.0)
    only_policy = [
        replace(s, token_weight={part: w * (part == "policy") for part, w in s.token_weight.items()}) for s in weighed
    ]
    budget = sum(len(sample) for sample in samples)
    _, gradient = loss_and_gradient(pack(only_policy, token_budget=budget, layout="padded"), learner, algorithm)
    largest = max((float(g.abs().max()) for g in gradient), default=0.0)
    return bounded("equal rewards move nothing", max(largest, advantage), 0.0)


def loss_and_gradient(
    microbatches: Sequence[Microbatch], learner: Learner, algorithm: Algorithm
) -> tuple[float, Gradient]:
    """The step's loss and a copy of its gradient; the learner's own gradient is cleared."""
    clear_gradient(learner)
    totals: list[float] = []

    def call(
        batch: TokenBatch, logprobs: torch.Tensor, entropy: torch.Tensor | None, values: torch.Tensor | None
    ) -> Loss:
        if algorithm.needs.ref_logprobs and batch.ref_logprobs is None:
            batch = replace(batch, ref_logprobs=logprobs.detach())
        if values is not None and batch.returns is None:
            batch = replace(batch, old_values=values.detach(), returns=batch.advantages)
        result = algorithm.loss(batch, logprobs, entropy, values)
        totals.append(float(result.total.detach()))
        return result

    for microbatch in microbatches:
        learner.forward_backward(microbatch, call)
    gradient = [p.grad.detach().clone() for _, p in trained_tensors(learner) if p.grad is not None]
    clear_gradient(learner)
    return sum(totals), gradient


def clear_gradient(learner: Learner) -> None:
    """Forget what forward_backward added."""
    for _, parameter in trained_tensors(learner):
        parameter.grad = None


def trained_tensors(learner: Learner) -> NamedTensors:
    """Every tensor with a gradient: a critic's own weights belong to no policy."""
    own: Callable[[], NamedTensors] = getattr(learner, "trained_tensors", learner.named_tensors)
    return own()


def gradient_distance(one: Gradient, other: Gradient) -> float:
    """Largest difference over the largest entry of ``other``; infinity for NaN or a missing tensor."""
    if len(one) != len(other):
        return float("inf")
    largest = max((float(g.abs().max()) for g in other), default=0.0)
    worst = max((float((a - b).abs().max()) for a, b in zip(one, other, strict=True)), default=0.0)
    return worst / max(largest, 1e-30) if np.isfinite(worst) else float("inf")


def _worst(one: np.ndarray, other: np.ndarray) -> float:
    """Largest absolute difference; infinity where a number is not finite, 0 for nothing."""
    if not one.size:
        return 0.0
    worst = float(np.max(np.abs(one - other)))
    return worst if np.isfinite(worst) else float("inf")
