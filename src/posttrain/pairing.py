"""Preference losses on a token batch: whole answers out of tokens, pairs out of answers, a loss out of pairs.

An answer is a rollout: its log-probability is the sum over its trained tokens, in float64. Two answers of one group
make a pair if their rewards differ, the larger is chosen. A row whose reward is NaN belongs to no pair: it is there to
be compared with (a mismatched or corrupted prompt). Rows whose advantage is zero take no part.
Every algorithm on preferences uses these; denominators come from the whole step (``TokenBatch.totals``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from posttrain.functional.masked import row_sum
from posttrain.functional.preference import Pairs, make_pairs, pair_metrics
from posttrain.functional.preference_lists import ordered_pairs
from posttrain.types import Group, Loss, Sample, Stat, TokenBatch

Choice = Literal["all", "best_worst"]
"""Which pairs of a group compare: every two answers with different rewards, or the best with the worst."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Answers:
    """The R answers of a batch; answers of one group have one ``groups`` number."""

    rows: Tensor
    """int64 [N]: answer of each token, ascending."""
    count: int
    """R."""
    logprobs: Tensor
    """[N]: the policy's, in the order of ``rows``."""
    ref_logprobs: Tensor | None
    """[N], detached: the reference's; None without one."""
    groups: Tensor
    """int64 [R]: number of each answer's group, from 0."""
    rewards: Tensor
    """float64 [R]; NaN where the answer has none."""
    order: Tensor | None = None
    """int64 [N]: places of these tokens in the batch; None if it has the same order."""

    @property
    def group_count(self) -> int:
        """Number of groups."""
        return int(self.groups.max()) + 1 if self.count else 0

    @property
    def sums(self) -> Tensor:
        """Log-probability of each answer under the policy, float64 [R]."""
        return row_sum(self.logprobs.double(), self.rows, self.count)

    @property
    def log_ratios(self) -> Tensor:
        """log pi - log ref of each answer, float64 [R]; raises ValueError without a reference."""
        return self.sums - row_sum(_present(self.ref_logprobs).double(), self.rows, self.count)

    def ordered(self, tokens: Tensor) -> Tensor:
        """Values [N] in the batch's token order, brought into the order of ``rows``."""
        return tokens if self.order is None else tokens[self.order]


def find_answers(batch: TokenBatch, logprobs: Tensor, *, reference: bool = True) -> Answers:
    """Gather the tokens of each rollout: its segments need not lie beside each other. ``logprobs`` [N].

    Raises ValueError where ``reference`` asks for log-probabilities that the batch lacks.
    """
    assert batch.groups is not None
    assert batch.rewards is not None
    count = batch.sample_count
    rollouts = torch.arange(count, device=logprobs.device) if batch.rollouts is None else batch.rollouts
    names = torch.stack([batch.groups, rollouts], dim=1)
    found, row_of = torch.unique(names, dim=0, return_inverse=True)
    rows = row_of[batch.samples]
    order = None if bool((rows[1:] >= rows[:-1]).all()) else torch.argsort(rows, stable=True)
    ref = _present(batch.ref_logprobs) if reference else None
    rewards = torch.full((len(found),), math.nan, dtype=torch.float64, device=logprobs.device)
    rewards[row_of] = batch.rewards.double()
    return Answers(
        rows=rows if order is None else rows[order],
        count=len(found),
        logprobs=logprobs if order is None else logprobs[order],
        ref_logprobs=ref if order is None or ref is None else ref[order],
        groups=torch.unique(found[:, 0], return_inverse=True)[1],
        rewards=rewards,
        order=order,
    )


def find_pairs(answers: Answers, choice: Choice = "all") -> tuple[Tensor, Tensor]:
    """Answer numbers (chosen, rejected), int64 [P] each."""
    chosen, rejected = ordered_pairs(-answers.rewards, answers.groups)
    if choice == "all" or not len(chosen):
        return chosen, rejected
    ranks = torch.nan_to_num(answers.rewards, nan=0.0)
    gap = ranks[chosen] - ranks[rejected]
    group = answers.groups[chosen]
    widest = torch.zeros(answers.group_count, dtype=gap.dtype, device=gap.device).scatter_reduce(0, group, gap, "amax")
    first = torch.full((answers.group_count,), len(gap), device=gap.device)
    places = torch.arange(len(gap), device=gap.device)
    first = first.scatter_reduce(0, group, torch.where(gap == widest[group], places, len(gap)), "amin")
    kept = first[first < len(gap)]
    return chosen[kept], rejected[kept]


def build_pairs(answers: Answers, *, choice: Choice = "all", length_alpha: float = 1.0) -> Pairs:
    """The batch's pairs as the pure losses take them."""
    chosen, rejected = find_pairs(answers, choice)
    return make_pairs(
        answers.logprobs,
        answers.rows,
        answers.count,
        chosen,
        rejected,
        ref_logprobs=answers.ref_logprobs,
        length_alpha=length_alpha,
    )


def roles(group: Group, choice: Choice = "all") -> list[np.ndarray]:
    """Advantages that say who takes part: 1 for an answer better than another, -1 for a merely worse one, else 0."""
    rewards = group.rewards
    if not rewards or min(rewards) == max(rewards):
        return [np.asarray(0.0) for _ in rewards]
    signs = [1.0 if reward > min(rewards) else -1.0 for reward in rewards]
    if choice == "best_worst":
        ends = {rewards.index(max(rewards)), rewards.index(min(rewards))}
        signs = [sign if place in ends else 0.0 for place, sign in enumerate(signs)]
    return [np.asarray(sign) for sign in signs]


class Comparing:
    """What every algorithm on pairs shares: which answers take part, and what their losses are divided by."""

    choice: Choice = "all"
    """Which pairs of a group compare."""

    def keep(self, group: Group) -> bool:
        """Every group counts; one of equal rewards holds no pair and moves nothing."""
        return True

    def advantages(self, groups: Sequence[Group]) -> list[list[np.ndarray]]:
        """Who takes part in a pair, and on which side."""
        return [roles(group, self.choice) for group in groups]

    def pair_totals(self, batch: TokenBatch, pairs: Pairs) -> dict[str, int]:
        """Pairs and chosen tokens of the whole step; those of this batch where no totals are given."""
        pair_name = "pairs" if self.choice == "all" else "comparing"
        count = batch.totals.get(pair_name, float(len(pairs.chosen)))
        tokens = batch.totals.get("pair_tokens", float(pairs.chosen_count.sum()))
        return {"batch_pairs": max(int(count), 1), "batch_tokens": max(int(tokens), 1)}

    def pair_weight(self, batch: TokenBatch, pairs: Pairs) -> float:
        """Weight of one pair in the mean over the step's pairs."""
        return 1 / self.pair_totals(batch, pairs)["batch_pairs"]


def equal_pair() -> Pairs:
    """One pair of policy and reference alike: what a run starts from."""
    zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.int64)
    sums = dict.fromkeys(("chosen", "rejected", "ref_chosen", "ref_rejected"), zero)
    return Pairs(chosen_count=one, rejected_count=one, **sums)


class Labelled:
    """What every algorithm on single answers called good or bad shares."""

    def keep(self, group: Group) -> bool:
        """Every answer counts."""
        return True

    def advantages(self, groups: Sequence[Group]) -> list[list[np.ndarray]]:
        """Everybody takes part; the reward says on which side."""
        return [[np.asarray(1.0 if reward > 0 else -1.0) for reward in group.rewards] for group in groups]

    def answer_weight(self, batch: TokenBatch, answers: Answers) -> float:
        """Weight of one answer in the mean over the step's."""
        return 1 / max(batch.totals.get("rollouts", float(answers.count)), 1.0)


def winners(answers: Answers) -> Tensor:
    """Which answers have the largest reward of their group, bool [R]."""
    known = torch.nan_to_num(answers.rewards, nan=-math.inf)
    best = torch.full((answers.group_count,), -math.inf, dtype=known.dtype, device=known.device)
    return known == best.scatter_reduce(0, answers.groups, known, "amax")[answers.groups]


def list_weight(batch: TokenBatch, answers: Answers) -> float:
    """Weight of one group in the mean over the step's groups that hold a comparison."""
    local = torch.unique(answers.groups[find_pairs(answers)[0]]).numel()
    return 1 / max(batch.totals.get("comparing", float(local)), 1.0)


def pair_stats(pairs: Pairs, *, beta: float, average: bool = False) -> dict[str, Stat]:
    """Canonical numbers of the pairs.

    Rewards are beta x log ratio; without a reference beta x log-probability, per token if ``average``.
    """
    found = pair_metrics(pairs, beta=beta)
    if average:
        chosen, rejected = (beta * side.detach() for side in (pairs.chosen_average, pairs.rejected_average))
        found |= {"chosen_reward": chosen, "rejected_reward": rejected, "margin": chosen - rejected}
        found |= {"accuracy": (chosen > rejected).double(), "tie": (chosen == rejected).double()}
    names = {
        "logprobs/chosen": "chosen_logprob",
        "logprobs/rejected": "rejected_logprob",
        "rewards/chosen": "chosen_reward",
        "rewards/rejected": "rejected_reward",
        "margin/mean": "margin",
        "accuracy": "accuracy",
        "tie_share": "tie",
        "token_gap/mean": "token_gap",
    }
    return {name: mean_stat(found[key]) for name, key in names.items()}


def label_stats(answers: Answers, *, beta: float, threshold: float) -> dict[str, Stat]:
    """Canonical numbers of labelled answers; accurate is a good one above the threshold and a bad one not above it."""
    good = answers.rewards > 0
    ratios, sums = answers.log_ratios.detach(), answers.sums.detach()
    return {
        "logprobs/chosen": mean_stat(sums[good]),
        "logprobs/rejected": mean_stat(sums[~good]),
        "rewards/chosen": mean_stat(beta * ratios[good]),
        "rewards/rejected": mean_stat(beta * ratios[~good]),
        "accuracy": mean_stat((ratios > threshold) == good),
    }


def make_loss(parts: Mapping[str, Tensor], stats: Mapping[str, Stat], logprobs: Tensor) -> Loss:
    """Add the parts, each a scalar; a batch without any comparison gives zero with a live graph."""
    total = torch.stack([part.double() for part in parts.values()]).sum() + logprobs.double().sum() * 0
    sums = {f"loss/{name}": Stat(kind="sum", value=float(part.detach())) for name, part in parts.items()}
    return Loss(total=total, stats={**stats, **sums, "loss": Stat(kind="sum", value=float(total.detach()))})


def mean_stat(values: Tensor) -> Stat:
    """A mean over the values, [n]."""
    return Stat(kind="mean", value=float(values.detach().double().sum()), count=float(values.numel()))


def summed(sample: Sample, values: np.ndarray | None) -> float:
    """Sum of a row's trained places in an array such as ``ref_logprobs``; raises ValueError where there is none."""
    if values is None:
        raise ValueError("this algorithm looks at the whole step's log-probabilities, and the samples carry none")
    return float(np.sum(values[sample.loss_mask]))


def log_ratios(samples: Sequence[Sample]) -> dict[tuple[int, int], float]:
    """log pi - log ref of every rollout of the step when the update starts, by (group, rollout)."""
    found: dict[tuple[int, int], float] = {}
    for sample in samples:
        own = summed(sample, sample.old_logprobs) - summed(sample, sample.ref_logprobs)
        found[sample.group, sample.rollout] = found.get((sample.group, sample.rollout), 0.0) + own
    return found


def group_gaps(samples: Sequence[Sample]) -> dict[int, float]:
    """Gap of log ratios, best answer minus worst, of every group of the step whose rewards differ."""
    ratios = log_ratios(samples)
    rewards: dict[int, dict[int, float]] = {}
    for sample in samples:
        rewards.setdefault(sample.group, {})[sample.rollout] = sample.reward
    gaps = {}
    for group, of_group in rewards.items():
        best, worst = max(of_group, key=of_group.__getitem__), min(of_group, key=of_group.__getitem__)
        if of_group[best] > of_group[worst]:
            gaps[group] = ratios[group, best] - ratios[group, worst]
    return gaps


def mismatched_rows(samples: Sequence[Sample]) -> list[Sample]:
    """Each row's prompt with the answer to the prompt before it in the batch, cyclic, as rows without a reward.

    KTO's baseline. A row is cut to the length of the step's longest, which fits the model. Raises ValueError where the
    batch has one prompt only.
    """
    if len({sample.group for sample in samples}) < 2:
        raise ValueError("a mismatched row needs answers to two prompts in the batch, and there is one")
    longest = max(map(len, samples))
    rows = []
    for place, sample in enumerate(samples):
        others = (samples[place - k] for k in range(1, len(samples)))
        other = next(row for row in others if row.group != sample.group)
        rows.append(_joined(sample, other, longest))
    return [row for row in rows if row.loss_mask.any()]


def _joined(sample: Sample, other: Sample, longest: int) -> Sample:
    """The prompt of one row and what follows the prompt in another."""
    head, tail = sample.prompt_length, other.prompt_length

    def join(mine: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        return np.concatenate([mine[:head], theirs[tail:]])[:longest]

    names = ("ids", "loss_mask", "advantages", "rollout_logprobs", "versions", "turns")
    joined: dict[str, Any] = {name: join(getattr(sample, name), getattr(other, name)) for name in names}
    return replace(sample, **joined, rollout=-1 - sample.rollout, reward=math.nan)


def companions(answers: Answers, choice: Choice) -> tuple[Tensor, Tensor]:
    """For each pair the log-probability, by policy and reference, of its group's row without a reward, [P] each.

    A group without such a row is compared with its chosen answer itself, a difference of 0.
    """
    chosen, _ = find_pairs(answers, choice)
    place = torch.full((answers.group_count,), -1, dtype=torch.int64, device=answers.groups.device)
    lone = torch.nonzero(answers.rewards.isnan())[:, 0]
    place[answers.groups[lone]] = lone
    row = place[answers.groups[chosen]]
    row = torch.where(row < 0, chosen, row)
    sums = answers.sums
    return sums[row], (sums - answers.log_ratios)[row].detach()


def _present(reference: Tensor | None) -> Tensor:
    if reference is None:
        raise ValueError("this loss compares with a reference, and the batch carries no ref_logprobs")
    return reference
