"""posttrain's side: a batch through its own stations and learner, up to the gradient."""

import functools
from dataclasses import dataclass, replace

import torch

from posttrain.batches.build import build_samples, moving, weigh
from posttrain.batches.pack import pack_auto, pack_whole_groups
from posttrain.learners.local import Config, LocalLearner
from posttrain.loops.update import extended, own_logprobs, refined, with_anchors
from posttrain.plugs import build_plug
from posttrain.settings import Plug
from posttrain.types import Needs, merge_stats

LIMIT = 16
"""Sampled tokens a rollout may have: Dr. GRPO's constant."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Found:
    """What one batch gives."""

    loss: float
    """Sum over the microbatches."""
    gradients: dict[str, torch.Tensor]
    """By parameter name."""
    stats: dict[str, float]
    """Watched numbers."""


def algorithm(name: str, **options):
    """A shipped algorithm with its options."""
    return build_plug("algorithms", Plug(type=name, **options), seed=0, token_limit=LIMIT)


def learner(model, needs: Needs, **parts) -> LocalLearner:
    """posttrain's learner on a model."""
    return LocalLearner(Config(), model, 1.0, 1, needs, **parts)


def packer(needs: Needs, owner: LocalLearner):
    """Small microbatches where the algorithm allows them, so that the split takes part in the check."""
    place, budget = (pack_auto, 24) if needs.separable else (pack_whole_groups, 10**6)
    return functools.partial(place, token_budget=budget, allowed=owner.layouts)


def evaluate(plug, groups, model, *, old=None, reference=None, **parts) -> Found:
    """Loss and gradient of the algorithm on these groups; ``old`` anchors the ratio, else the policy itself does."""
    needs = plug.needs
    owner = learner(model, needs, reference_model=reference, **parts)
    pack = packer(needs, owner)
    samples = extended(plug, build_samples(groups, plug.advantages(groups)))
    samples = with_anchors(samples, owner, plug, pack, anchored=needs.old_logprobs and old is None)
    if old is not None:
        rows = own_logprobs(samples, learner(old, Needs()), pack)
        samples = [replace(sample, old_logprobs=row) for sample, row in zip(samples, rows, strict=True)]
    weighed = weigh(refined(plug, samples), needs.streams, constant=float(LIMIT))
    stats = merge_stats([owner.forward_backward(batch, plug.loss) for batch in pack(moving(weighed))])
    gradients = {name: p.grad.clone() for name, p in owner.trained_tensors() if p.grad is not None}
    owner.clear_gradient()
    numbers = {name: stat.result for name, stat in stats.items()}
    return Found(loss=numbers["loss"], gradients=gradients, stats=numbers)
