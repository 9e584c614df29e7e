"""Samples to weights: the part that online and offline training share.

Consumes the samples of one batch; produces changed weights and the step's numbers. One batch is
epochs x minibatches optimizer steps; old log-probabilities are recomputed only if a second step needs an anchor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from posttrain.batches.build import moves, moving, scatter, split_minibatches, weigh
from posttrain.batches.correct import correct, stand_in
from posttrain.batches.watch import watched
from posttrain.config import Batches
from posttrain.correction import Correction
from posttrain.protocols import Algorithm, Learner, Packer
from posttrain.types import Ending, Microbatch, Sample, Stat, StepStats, merge_stats

UNCORRECTED = Correction()
"""Tokens count as if the learner had sampled them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """What one batch did to the weights."""

    stats: Mapping[str, Stat]
    """Watched numbers over the whole batch; the loss is its mean over the optimizer steps."""
    steps: tuple[StepStats, ...]
    """One entry per optimizer step that had a gradient."""
    computed: int
    """Token places that went through forward and backward."""
    still: int
    """Samples left out because nothing in them can move a weight."""
    samples: tuple[Sample, ...] = ()
    """The samples as they trained: anchors, final advantages, masks and mismatch weights."""


def update(
    samples: Sequence[Sample],
    *,
    learner: Learner,
    algorithm: Algorithm,
    pack: Packer,
    batches: Batches,
    constant: float,
    seed: Sequence[int],
    between: Callable[[], None] = lambda: None,
    correction: Correction = UNCORRECTED,
) -> Update:
    """Run every optimizer step of the batch; ``between`` is called after each microbatch (progress, threads)."""
    samples = extended(algorithm, samples)
    anchored = algorithm.needs.old_logprobs or batches.epochs * batches.minibatches > 1
    if correction.type == "bypass" and not correction.recomputes:
        samples, anchored = stand_in(samples), False
    samples = with_anchors(
        samples,
        learner,
        algorithm,
        pack,
        anchored=anchored or correction.recomputes,
        everywhere=correction.recomputes,
    )
    samples = refined(algorithm, samples)
    samples, gap = correct(samples, correction)
    stats: list[Mapping[str, Stat]] = []
    steps: list[StepStats] = []
    said: dict[int, np.ndarray] = {}
    weighed: list[Sample] = []
    computed = still = 0
    for epoch in range(batches.epochs):
        for part in split_minibatches(samples, batches.minibatches, (*seed, epoch)):
            weighed = weigh(part, algorithm.needs.streams, constant=constant)
            alive = moving(weighed)
            still += len(part) - len(alive)
            for microbatch in pack(alive):
                heard: list[np.ndarray] = []
                stats.append(learner.forward_backward(microbatch, watched(algorithm.loss, heard.append)))
                rows = scatter(microbatch.samples, heard[0])
                said |= {id(sample): row for sample, row in zip(microbatch.samples, rows, strict=True)}
                computed += microbatch.token_count
                between()
            if alive:
                steps.append(learner.step())
    if not anchored and batches.epochs * batches.minibatches == 1:
        samples = as_trained(samples, [said.get(id(sample)) for sample in weighed])
    merged = {name: per_step(name, stat, len(steps)) for name, stat in merge_stats(stats).items()}
    own: Mapping[str, float] = getattr(algorithm, "numbers", dict)()
    merged |= {name: Stat(kind="mean", value=number) for name, number in {**own, **gap}.items()}
    return Update(stats=merged, steps=tuple(steps), computed=computed, still=still, samples=tuple(samples))


def as_trained(samples: Sequence[Sample], rows: Sequence[np.ndarray | None]) -> list[Sample]:
    """The samples with the log-probabilities their only gradient was taken at, so that the record has both sides."""
    return [
        sample if row is None or sample.old_logprobs is not None else replace(sample, old_logprobs=row)
        for sample, row in zip(samples, rows, strict=True)
    ]


def per_step(name: str, stat: Stat, steps: int) -> Stat:
    """A loss sums over the microbatches of one optimizer step and is averaged over the steps of a batch."""
    if stat.kind == "sum" and name.partition("/")[0] == "loss":
        return Stat(kind="mean", value=stat.value, count=steps)
    return stat


def with_anchors(
    samples: Sequence[Sample],
    learner: Learner,
    algorithm: Algorithm,
    pack: Packer,
    *,
    anchored: bool,
    everywhere: bool = False,
) -> list[Sample]:
    """Add reference and, if ``anchored``, old log-probabilities, by the learner's own forward, where anything moves.

    An algorithm that refines may still give a still sample an advantage, so there every sample gets them, as with
    ``everywhere``.
    """
    refines = everywhere or getattr(algorithm, "refine", None) is not None
    streams = algorithm.needs.streams
    places = [place for place, sample in enumerate(samples) if refines or moves(sample, streams)]
    alive = [samples[place] for place in places]
    if algorithm.needs.ref_logprobs:
        alive = with_reference(alive, learner, pack)
    if anchored:
        values = own_logprobs(alive, learner, pack)
        alive = [replace(sample, old_logprobs=row) for sample, row in zip(alive, values, strict=True)]
    if algorithm.needs.teacher_logprobs:
        alive = with_teacher(alive, learner, pack)
    if algorithm.needs.values and not algorithm.needs.scores:
        alive = with_values(alive, learner, pack)
    result = list(samples)
    for place, sample in zip(places, alive, strict=True):
        result[place] = sample
    return result


def with_reference(samples: Sequence[Sample], learner: Learner, pack: Packer) -> list[Sample]:
    """Add the reference's log-probabilities where they are not there yet."""
    bare = [sample for sample in samples if sample.ref_logprobs is None]
    values = own_logprobs(bare, learner, pack, reference=True)
    found = {id(sample): row for sample, row in zip(bare, values, strict=True)}
    return [replace(sample, ref_logprobs=found[id(sample)]) if id(sample) in found else sample for sample in samples]


def with_values(samples: Sequence[Sample], learner: Learner, pack: Packer) -> list[Sample]:
    """Add the critic's value of the state before each trained token and, where a limit cut a rollout off, behind it.

    The value behind a row is that of a further token, which no forward computes.
    """
    longer = [bootstrapped(sample) for sample in samples]
    found: dict[int, np.ndarray] = {}
    for microbatch in pack(longer):
        values = learner.values(microbatch)  # type: ignore[attr-defined]
        for sample, row in zip(microbatch.samples, scatter(microbatch.samples, values), strict=True):
            found[id(sample)] = row
    rows = [found[id(sample)] for sample in longer]
    return [
        replace(sample, values=row[: len(sample)], bootstrap=float(row[-1]) if len(row) > len(sample) else 0.0)
        for sample, row in zip(samples, rows, strict=True)
    ]


def with_teacher(samples: Sequence[Sample], learner: Learner, pack: Packer) -> list[Sample]:
    """Add what its teacher gives each trained token."""
    rows = teacher_logprobs(samples, learner, pack)
    return [replace(sample, teacher_logprobs=row) for sample, row in zip(samples, rows, strict=True)]


def teacher_logprobs(
    samples: Sequence[Sample],
    learner: Learner,
    pack: Packer,
    *,
    spread: Literal["divide", "broadcast"] = "broadcast",
) -> list[np.ndarray]:
    """Log-probabilities of the trained tokens under the learner's teachers, one array per sample.

    A teacher of other tokens is asked its own row, and its word given to the student's tokens by ``spread``, relative
    to the old log-probabilities (the learner's own where there are none yet); NaN where it has none.
    """
    teachers = learner.teachers  # type: ignore[attr-defined]
    foreign = {id(s): found for s in samples if (found := teachers.alignment(s.task)) is not None}
    asked = {id(s): foreign[id(s)].ask(s) for s in samples if id(s) in foreign}
    met = [sample for sample in samples if asked.get(id(sample)) is not None]
    plain = [sample for sample in samples if id(sample) not in foreign]
    values = scored([*plain, *(asked[id(sample)].row for sample in met)], teachers.logprobs, pack)
    rows = {id(sample): row for sample, row in zip(plain, values, strict=False)}
    for sample, own, theirs in zip(met, anchors(met, learner, pack), values[len(plain) :], strict=True):
        rows[id(sample)] = asked[id(sample)].taught(own, theirs, spread=spread)
    return [rows.get(id(sample), np.full(len(sample), np.nan)) for sample in samples]


def anchors(samples: Sequence[Sample], learner: Learner, pack: Packer) -> list[np.ndarray]:
    """Old log-probabilities, computed where they are not there yet."""
    bare = [sample for sample in samples if sample.old_logprobs is None]
    found = {id(sample): row for sample, row in zip(bare, own_logprobs(bare, learner, pack), strict=True)}
    return [found[id(s)] if s.old_logprobs is None else s.old_logprobs for s in samples]


def bootstrapped(sample: Sample) -> Sample:
    """The row with one more trained token behind it if a limit cut its rollout off, else as it is."""
    if sample.ending is not Ending.LENGTH or not sample.loss_mask.any():
        return sample
    return replace(sample, ids=np.append(sample.ids, 0), loss_mask=np.append(sample.loss_mask, True))


def extended(algorithm: Algorithm, samples: Sequence[Sample]) -> list[Sample]:
    """The samples and what further rows the algorithm compares them with, if it does."""
    extend = getattr(algorithm, "extend", None)
    return list(samples) if extend is None else extend(samples)


def refined(algorithm: Algorithm, samples: Sequence[Sample]) -> list[Sample]:
    """The samples after the algorithm's own last word on advantages, returns and masks, if it has one."""
    refine = getattr(algorithm, "refine", None)
    return list(samples) if refine is None else refine(samples)


def own_logprobs(
    samples: Sequence[Sample], learner: Learner, pack: Packer, *, reference: bool = False
) -> list[np.ndarray]:
    """Log-probabilities of the trained tokens under the learner or its reference, one array per sample."""
    return scored(samples, lambda microbatch: learner.logprobs(microbatch, reference=reference)[0], pack)


def scored(samples: Sequence[Sample], score: Callable[[Microbatch], np.ndarray], pack: Packer) -> list[np.ndarray]:
    """What ``score`` gives the trained tokens of each microbatch, [N], as one array per sample."""
    found: dict[int, np.ndarray] = {}
    for microbatch in pack(samples):
        values = score(microbatch)
        for sample, row in zip(microbatch.samples, scatter(microbatch.samples, values), strict=True):
            found[id(sample)] = row
    return [found[id(sample)] for sample in samples]
