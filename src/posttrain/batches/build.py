"""Groups to samples: advantages broadcast to sampled tokens, token weights over the whole optimizer step.

Consumes scored groups, produces samples; the weights are computed before the first backward from every sample of
the step, so that no later split changes the loss.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from posttrain.functional.reduce import token_weights
from posttrain.types import Group, Rollout, Sample, Segment


def build_samples(groups: Sequence[Group], advantages: Sequence[Sequence[np.ndarray]]) -> list[Sample]:
    """Return one sample per segment, in group, rollout and segment order.

    ``advantages[g][r]`` is float64 of shape [] (the whole rollout) or [sampled tokens of the rollout].
    Raises ValueError where the number of advantages does not fit.
    """
    samples: list[Sample] = []
    for group, of_group in zip(groups, advantages, strict=True):
        for rollout, advantage in zip(group.rollouts, of_group, strict=True):
            samples.extend(_rollout_samples(group.position, rollout, np.asarray(advantage, dtype=np.float64)))
    return samples


def _rollout_samples(position: int, rollout: Rollout, advantage: np.ndarray) -> list[Sample]:
    count = rollout.sampled_count
    if advantage.ndim and advantage.shape != (count,):
        raise ValueError(
            f"group {position} rollout {rollout.index}: {advantage.shape} advantages for {count} sampled tokens"
        )
    per_token = np.broadcast_to(advantage, (count,))
    samples, used = [], 0
    for segment in rollout.segments:
        length = sum(segment.loss_mask)
        samples.append(_sample(position, rollout, segment, per_token[used : used + length]))
        used += length
    return samples


def _sample(position: int, rollout: Rollout, segment: Segment, advantages: np.ndarray) -> Sample:
    mask = np.asarray(segment.loss_mask, dtype=bool)
    spread = np.full(len(mask), np.nan)
    spread[mask] = advantages
    return Sample(
        ids=np.asarray(segment.ids, dtype=np.int64),
        images=segment.images,
        loss_mask=mask,
        prompt_length=segment.prompt_length,
        group=position,
        rollout=rollout.index,
        reward=float("nan") if rollout.reward is None else float(rollout.reward),
        ending=rollout.ending,
        advantages=spread,
        rollout_logprobs=np.asarray(segment.rollout_logprobs, dtype=np.float64),
        versions=np.asarray(segment.versions, dtype=np.int64),
        turns=np.asarray(segment.turns, dtype=np.int64),
        task=rollout.task,
    )


def weigh(samples: Sequence[Sample], streams: Mapping[str, str], *, constant: float | None = None) -> list[Sample]:
    """Give each sample its weight streams over this optimizer step; a weight is zero where nothing trains.

    ``streams`` maps a loss part to its reduction; ``constant`` is the length of seq-mean-token-sum-norm.
    """
    counts = torch.tensor([int(sample.loss_mask.sum()) for sample in samples])
    prompts = torch.tensor([sample.group for sample in samples])
    names = {key: number for number, key in enumerate(dict.fromkeys((s.group, s.rollout) for s in samples))}
    rollouts = torch.tensor([names[(sample.group, sample.rollout)] for sample in samples])
    positive = torch.tensor([sample.reward > 0 for sample in samples])
    labels = {"rollouts": rollouts, "prompts": prompts, "positive": positive}
    weights = {part: token_weights(mode, counts, constant=constant, **labels).numpy() for part, mode in streams.items()}
    totals = {
        "rows": float((counts > 0).sum()),
        "tokens": float(counts.sum()),
        "groups": float(len(set(prompts.tolist()))),
        **comparisons([sample for sample in samples if moves(sample, streams)]),
    }
    return [
        replace(
            sample,
            token_weight={part: _spread(sample, part, weight[index]) for part, weight in weights.items()},
            totals=totals,
        )
        for index, sample in enumerate(samples)
    ]


def comparisons(samples: Sequence[Sample]) -> dict[str, float]:
    """What losses on answers and on pairs of answers divide by, over the step's rows that move: see ``Sample.totals``.

    Two rollouts of one group make a pair if their rewards differ; one without a reward (NaN) makes none.
    """
    rewards: dict[int, dict[int, float]] = {}
    tokens: dict[tuple[int, int], int] = {}
    for sample in samples:
        rewards.setdefault(sample.group, {})[sample.rollout] = sample.reward
        key = (sample.group, sample.rollout)
        tokens[key] = tokens.get(key, 0) + int(sample.loss_mask.sum())
    pairs = pair_tokens = comparing = 0
    for group, of_group in rewards.items():
        values = np.array(list(of_group.values()))
        worse = (values[:, None] > values[None, :]).sum(1)
        pairs += int(worse.sum())
        pair_tokens += sum(int(n) * tokens[group, rollout] for n, rollout in zip(worse, of_group, strict=True))
        comparing += bool(worse.any())
    counts = {"rollouts": len(tokens), "pairs": pairs, "pair_tokens": pair_tokens, "comparing": comparing}
    return {name: float(count) for name, count in counts.items()}


def _spread(sample: Sample, part: str, weight: float) -> np.ndarray:
    """A row's weight on every token that trains; the policy part takes the mismatch weight in, here and only here."""
    factor = sample.mismatch if part == "policy" and sample.mismatch is not None else 1.0
    return np.where(sample.loss_mask, weight * factor, 0.0)


def split_minibatches(samples: Sequence[Sample], count: int, seed: Sequence[int]) -> list[list[Sample]]:
    """Deal the samples into ``count`` optimizer steps by group, shuffled by ``seed``; one step keeps the order."""
    if count == 1:
        return [list(samples)]
    groups = list(dict.fromkeys(sample.group for sample in samples))
    order = np.random.default_rng(np.random.SeedSequence(list(seed))).permutation(len(groups))
    chosen = [{groups[i] for i in part} for part in np.array_split(order, count)]
    return [part for part in ([s for s in samples if s.group in members] for members in chosen) if part]


def moving(samples: Sequence[Sample]) -> list[Sample]:
    """The samples that can move a weight: a policy advantage that is not zero, or another loss part's weight.

    The others are left out of forward and backward; they have already counted in the denominators.
    """
    return [sample for sample in samples if moves(sample, sample.token_weight)]


def moves(sample: Sample, parts: Collection[str]) -> bool:
    """True if a sample can move a weight under these loss parts."""
    if not sample.loss_mask.any():
        return False
    return any(part != "policy" for part in parts) or bool(np.any(sample.advantages[sample.loss_mask] != 0))


def scatter(samples: Sequence[Sample], values: np.ndarray) -> list[np.ndarray]:
    """Spread flat values [N] of the trained tokens back to one NaN-filled array per sample."""
    spread, used = [], 0
    for sample in samples:
        row = np.full(len(sample), np.nan)
        length = int(sample.loss_mask.sum())
        row[sample.loss_mask] = values[used : used + length]
        used += length
        spread.append(row)
    return spread
