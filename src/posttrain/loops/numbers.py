"""Numbers of one batch of groups, before any filter: reward, passes, groups, lengths, staleness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from posttrain.types import Group, Outcome, Rollout, Sample


def passed(rollout: Rollout) -> bool:
    """True if the first reward part that applies, the task's own, reached 1 (the rule of evaluations too)."""
    found = next((score for score in rollout.scores if score.value is not None), None)
    return found is not None and found.outcome is Outcome.SCORED and (found.value or 0.0) >= 1.0


def group_numbers(groups: Sequence[Group], version: int) -> dict[str, float]:
    """Canonical metric names to numbers over all rollouts of the batch; ``version`` is the learner's."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    if not rollouts:
        return {"groups/count": float(len(groups))}
    lengths = np.array([rollout.sampled_count for rollout in rollouts], dtype=np.float64)
    numbers = {
        "groups/count": len(groups),
        "length/mean": lengths.mean(),
        "length/max": lengths.max(),
        "length/min": lengths.min(),
        "truncated_share": np.mean([rollout.truncated for rollout in rollouts]),
        "tokens/sampled": lengths.sum(),
        **_rewards([group for group in groups if group.rollouts]),
        **_greedy(groups),
        **_staleness(rollouts, version),
    }
    return {name: float(value) for name, value in numbers.items()}


def _rewards(groups: Sequence[Group]) -> dict[str, float]:
    """What the reward says of the batch; nothing where nobody scores, as under a teacher alone."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    if any(rollout.reward is None for rollout in rollouts):
        return {}
    rewards = np.array([rollout.reward for rollout in rollouts], dtype=np.float64)
    right = [[passed(rollout) for rollout in group.rollouts] for group in groups]
    return {
        "reward/mean": float(rewards.mean()),
        "reward/std": float(rewards.std()),
        "pass_rate": float(np.mean([ok for group in right for ok in group])),
        "groups/all_right": sum(all(group) for group in right),
        "groups/all_wrong": sum(not any(group) for group in right),
        "groups/mixed": sum(any(group) and not all(group) for group in right),
        "groups/equal": sum(len(set(group.rewards)) == 1 for group in groups),
        **_parts(rollouts),
    }


def _greedy(groups: Sequence[Group]) -> dict[str, float]:
    """Mean reward at temperature 0, where an algorithm asked for such rollouts."""
    rewards = [g.greedy.reward for g in groups if g.greedy is not None and g.greedy.reward is not None]
    return {"reward/greedy": float(np.mean(rewards))} if rewards else {}


def _parts(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Mean of each reward part over the rollouts it applies to."""
    values: dict[str, list[float]] = {}
    unparsable = 0
    for rollout in rollouts:
        for score in rollout.scores:
            unparsable += score.outcome is Outcome.UNPARSABLE
            if score.value is not None:
                values.setdefault(score.name, []).append(score.value)
    numbers = {f"reward/{name}/mean": float(np.mean(found)) for name, found in values.items()}
    return {**numbers, "rollouts/unparsable": float(unparsable)}


def staleness_numbers(groups: Sequence[Group], version: int) -> dict[str, float]:
    """How many versions behind the learner's ``version`` the tokens of these groups are."""
    return _staleness([rollout for group in groups for rollout in group.rollouts], version)


def pass_rates(groups: Sequence[Group]) -> dict[int, float]:
    """Share of right rollouts by position, of groups that have any."""
    return {g.position: float(np.mean([passed(r) for r in g.rollouts])) for g in groups if g.rollouts}


def _staleness(rollouts: Sequence[Rollout], version: int) -> dict[str, float]:
    """How many versions behind the learner the sampled tokens are."""
    behind = [
        version - token_version
        for rollout in rollouts
        for segment in rollout.segments
        for token_version, sampled in zip(segment.versions, segment.loss_mask, strict=True)
        if sampled
    ]
    if not behind:
        return {}
    return {"staleness/mean": float(np.mean(behind)), "staleness/max": float(np.max(behind))}


def sample_numbers(samples: Sequence[Sample]) -> Mapping[str, float]:
    """Numbers of an offline batch: lengths of what is imitated."""
    lengths = np.array([int(sample.loss_mask.sum()) for sample in samples], dtype=np.float64)
    return {
        "length/mean": float(lengths.mean()),
        "length/max": float(lengths.max()),
        "length/min": float(lengths.min()),
    }
