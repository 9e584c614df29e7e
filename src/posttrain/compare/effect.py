"""What an algorithm does to each token of a stored batch, by its own classes and autograd.

advantages -> build_samples -> refine -> weigh -> loss -> backward to the log-probabilities: the stations of a real
step, with the stored numbers where a learner would compute them. The coefficient of a token is dL/dlogprob over the
whole batch as one optimizer step: negative raises the token's probability, positive lowers it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from posttrain.batches.build import build_samples, moving, weigh
from posttrain.batches.correct import correct, stand_in
from posttrain.batches.pack import pack
from posttrain.compare.sides import Side
from posttrain.compare.stored import StoredBatch
from posttrain.loops.update import refined
from posttrain.models.rows import token_batch
from posttrain.types import Group, Microbatch, Needs, Sample

__all__ = ["Effect", "Token", "effect_of", "lacking"]

Token = tuple[int, int, int, int]
"""Position of the group, index of the rollout, number of the segment, place in it."""

ATTACHED = {
    "old_logprobs": "old_logprobs",
    "ref_logprobs": "ref_logprobs",
    "teacher_logprobs": "teacher_logprobs",
    "values": "old_values",
}
"""Field of a sample, and the stored number that fills it."""
UNDERSTOOD = {
    "engine",
    "group_size",
    "streams",
    "separable",
    "whole_groups",
    "data",
    "refill",
    "greedy",
    "groups",
    "entropy",
    "on_policy",
    *ATTACHED,
}
"""Needs that a stored batch can meet."""
WORDS = {
    "divergence": "student's and teacher's logits over the whole vocabulary",
    "collision": "the probability that two draws agree",
}
"""What a need that no stored batch meets asks for; another one is called by its own name."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Effect:
    """Per sampled token: advantage and gradient coefficient; a token that does not train has neither."""

    advantages: Mapping[Token, float]
    """Advantage of each token that trains."""
    coefficients: Mapping[Token, float]
    """dL/dlogprob of each token that trains; 0 where clipped."""
    loss: float
    """The loss's value."""
    notes: tuple[str, ...] = ()
    """What stood in for what."""


def lacking(side: Side, batch: StoredBatch) -> str | None:
    """Why the stored batch cannot show the algorithm's effect, or None if it can."""
    algorithm, needs = side.algorithm, side.algorithm.needs
    if needs.scores:
        return "it trains a reward model: scores, no token's log-probability"
    if needs.data not in ("demonstrations", "preferences", "labels"):
        return f"it reads {needs.data}, which the stored batch does not hold"
    if getattr(algorithm, "extend", None) is not None:
        return "it compares with further rows, whose log-probabilities are not stored"
    wanted = [name for field, name in ATTACHED.items() if getattr(needs, field)]
    wanted += ["entropy"] if needs.entropy else []
    wanted += ["values"] if needs.values else []
    missing = [name for name in dict.fromkeys(wanted) if not batch.has(name)]
    if needs.greedy and any(group.greedy is None for group in batch.groups):
        missing.append("the greedy rollout of each group")
    missing += _unknown(needs)
    return f"it needs {', '.join(missing)}, which the stored batch lacks" if missing else None


def _unknown(needs: Needs) -> list[str]:
    """Needs that nothing here can meet."""
    usual = Needs()
    return [
        WORDS.get(field.name, field.name.replace("_", " "))
        for field in dataclasses.fields(needs)
        if field.name not in UNDERSTOOD and getattr(needs, field.name) != getattr(usual, field.name)
    ]


def effect_of(side: Side, batch: StoredBatch) -> Effect:
    """The algorithm's effect on the batch; `lacking` must have found nothing."""
    algorithm, needs = side.algorithm, side.algorithm.needs
    groups, notes = carriers(needs, batch.groups)
    kept = [group for group in groups if algorithm.keep(group)]
    dropped = len(groups) - len(kept)
    samples = build_samples(kept, algorithm.advantages(kept))
    samples = corrected(side, attached(samples, segment_numbers(samples), batch))
    alive = moving(weigh(samples, needs.streams, constant=side.constant(batch.longest)))
    notes += (f"{dropped} of {len(groups)} groups dropped by its filter",) if dropped else ()
    if not alive:
        return Effect(advantages={}, coefficients={}, loss=0.0, notes=(*notes, "nothing in this batch moves it"))
    where = {id(sample.ids): number for sample, number in zip(samples, segment_numbers(samples), strict=True)}
    (microbatch,) = pack(alive, token_budget=2**62, layout="padded")
    return _backward(side, batch, microbatch, [where[id(sample.ids)] for sample in microbatch.samples], notes)


def corrected(side: Side, samples: Sequence[Sample]) -> list[Sample]:
    """The samples after the algorithm's last word and the correction for tokens that another policy sampled."""
    correction = side.correction
    if correction.type == "bypass" and not correction.recomputes:
        samples = stand_in(samples)
    return correct(refined(side.algorithm, samples), correction)[0]


def _backward(
    side: Side, batch: StoredBatch, microbatch: Microbatch, numbers: Sequence[int], notes: tuple[str, ...]
) -> Effect:
    tokens = token_batch(microbatch, dtype=torch.float64, device="cpu")
    leaf = _flat(batch, "logprobs", microbatch.samples, numbers).requires_grad_()
    entropy = _flat(batch, "entropy", microbatch.samples, numbers) if batch.has("entropy") else None
    values = _flat(batch, "values", microbatch.samples, numbers) if batch.has("values") else None
    loss = side.algorithm.loss(tokens, leaf, entropy, values)
    (gradient,) = torch.autograd.grad(loss.total, leaf, allow_unused=True)
    coefficients = [0.0] * len(leaf) if gradient is None else gradient.tolist()
    keys = [
        (sample.group, sample.rollout, number, int(place))
        for sample, number in zip(microbatch.samples, numbers, strict=True)
        for place in np.flatnonzero(sample.loss_mask)
    ]
    return Effect(
        advantages=dict(zip(keys, tokens.advantages.tolist(), strict=True)),
        coefficients=dict(zip(keys, coefficients, strict=True)),
        loss=float(loss.total.detach()),
        notes=notes,
    )


def _flat(batch: StoredBatch, name: str, samples: Sequence[Sample], numbers: Sequence[int]) -> torch.Tensor:
    """A stored number at the trained tokens of the samples, [N]."""
    rows = [
        batch.numbers[name][(sample.group, sample.rollout)][number][sample.loss_mask]
        for sample, number in zip(samples, numbers, strict=True)
    ]
    return torch.from_numpy(np.concatenate([np.zeros(0), *rows]))


def segment_numbers(samples: Sequence[Sample]) -> list[int]:
    """Number of each sample's segment in its rollout; segments follow each other."""
    seen: dict[tuple[int, int], int] = {}
    numbers = []
    for sample in samples:
        key = (sample.group, sample.rollout)
        numbers.append(seen.get(key, 0))
        seen[key] = numbers[-1] + 1
    return numbers


def attached(samples: Sequence[Sample], numbers: Sequence[int], batch: StoredBatch) -> list[Sample]:
    """The samples with everything the batch knows of them, as the learner would have attached it."""
    known = {field: name for field, name in ATTACHED.items() if batch.has(name)}
    return [
        replace(
            sample,
            **{  # type: ignore[arg-type]
                field: batch.numbers[name][(sample.group, sample.rollout)][number] for field, name in known.items()
            },
        )
        for sample, number in zip(samples, numbers, strict=True)
    ]


def carriers(needs: Needs, groups: Sequence[Group]) -> tuple[list[Group], tuple[str, ...]]:
    """The groups as the algorithm reads them, and what stands for what.

    Offline algorithms read pairs or demonstrations; the best and the worst rollout of a group stand for a pair, the
    best ones for demonstrations, and each rollout alone, called good or bad, for labels.
    """
    if needs.engine:
        return list(groups), ()
    mixed = [group for group in groups if len(set(group.rewards)) > 1]
    if needs.data == "preferences":
        pairs = [_pair(group) for group in mixed]
        return pairs, (f"the best and the worst rollout of each of {len(pairs)} groups stand for its pairs",)
    if needs.data == "labels":
        return _labelled(groups), ("every rollout stands for a labelled answer: good if its reward is above 0.5",)
    best = [
        replace(group, rollouts=tuple(r for r in group.rollouts if r.reward == max(group.rewards))) for group in mixed
    ]
    return best, ("the best rollouts of each group stand for its demonstrations",)


def _pair(group: Group) -> Group:
    ordered = sorted(group.rollouts, key=lambda rollout: rollout.reward or 0.0)
    return replace(group, rollouts=(ordered[-1], ordered[0]))


def _labelled(groups: Sequence[Group]) -> list[Group]:
    return [
        replace(group, rollouts=(replace(rollout, reward=float((rollout.reward or 0.0) > 0.5)),))
        for group in groups
        for rollout in group.rollouts
    ]
