"""How good a score head is on held-out data: accuracy with its interval, and calibration.

Comparisons: share of groups whose best answer scores above its worst (one pair a group, so that pairs are independent),
and the calibration of sigmoid(score gap). Steps: share of labelled steps on the right side of one half, and the
calibration of sigmoid(score); steps of one solution hang together, so their interval is somewhat too narrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch

from posttrain.batches.build import build_samples, scatter
from posttrain.functional.intervals import wilson
from posttrain.functional.reward_quality import calibration_error, pair_accuracy, pair_calibration_error
from posttrain.protocols import Packer, ScoreAlgorithm, ValueLearner
from posttrain.types import Group, Sample


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreQuality:
    """One evaluation of a score head."""

    accuracy: float
    """Share of pairs, or of steps, that it judges as the data do; a tie counts one half."""
    low: float
    """Lower end of the 95 % interval."""
    high: float
    """Upper end."""
    count: int
    """Pairs, or steps."""
    calibration_error: float
    """Expected distance of its probabilities from the observed share (ten bins)."""
    chance: float
    """What the better of two constant answers would reach."""

    def metrics(self) -> dict[str, float]:
        """The numbers by canonical name."""
        return {f"eval/{name}": float(value) for name, value in asdict(self).items()}


def score_quality(
    groups: Sequence[Group], *, algorithm: ScoreAlgorithm, learner: ValueLearner, pack: Packer
) -> ScoreQuality:
    """Score held-out groups and compare; raises ValueError where they hold nothing to compare."""
    samples = algorithm.refine(build_samples(groups, algorithm.advantages(groups)))
    alive = [sample for sample in samples if sample.loss_mask.any()]
    scores = own_scores(alive, learner, pack)
    if algorithm.needs.data == "steps":
        labels = np.concatenate([sample.advantages[sample.loss_mask] for sample in alive])
        return _of_steps(torch.tensor(np.concatenate(scores)), torch.tensor(labels))
    found = {(sample.group, sample.rollout): float(row[0]) for sample, row in zip(alive, scores, strict=True)}
    pairs = [_best_and_worst(group, found) for group in groups if len(set(group.rewards)) > 1]
    if not pairs:
        raise ValueError("no held-out group has a better and a worse answer")
    chosen, rejected = torch.tensor(pairs, dtype=torch.float64).T
    measured = pair_accuracy(chosen, rejected)
    return ScoreQuality(
        accuracy=measured.value,
        low=measured.low,
        high=measured.high,
        count=measured.pairs,
        calibration_error=pair_calibration_error(chosen, rejected),
        chance=0.5,
    )


def own_scores(samples: Sequence[Sample], learner: ValueLearner, pack: Packer) -> list[np.ndarray]:
    """The scores at each sample's trained places, left to right."""
    found: dict[int, np.ndarray] = {}
    for microbatch in pack(samples):
        values = learner.values(microbatch)
        for sample, row in zip(microbatch.samples, scatter(microbatch.samples, values), strict=True):
            found[id(sample)] = row[sample.loss_mask]
    return [found[id(sample)] for sample in samples]


def _best_and_worst(group: Group, scores: dict[tuple[int, int], float]) -> tuple[float, float]:
    best = max(group.rollouts, key=lambda rollout: rollout.reward or 0.0)
    worst = min(group.rollouts, key=lambda rollout: rollout.reward or 0.0)
    return scores[group.position, best.index], scores[group.position, worst.index]


def _of_steps(scores: torch.Tensor, labels: torch.Tensor) -> ScoreQuality:
    sure = labels != 0.5
    if not bool(sure.any()):
        raise ValueError("no held-out step has a label")
    scores, labels = scores.double()[sure], labels[sure]
    right = float(((scores > 0) == (labels > 0.5)).double().mean())
    low, high = wilson(right, len(labels))
    positive = float((labels > 0.5).double().mean())
    return ScoreQuality(
        accuracy=right,
        low=low,
        high=high,
        count=len(labels),
        calibration_error=calibration_error(torch.sigmoid(scores), labels),
        chance=max(positive, 1 - positive),
    )
