"""What the files of the policy gradient family share: KL sections, group estimates, token books, the weighted sum.

Where the KL to the reference enters (x = log p - log q on sampled tokens, docs/algorithms compares them):

in the reward   -beta x per token, detached, summed from each token on (k1): the unbiased gradient of the sequence KL
in the loss     k2, k3_k2 (value k3, gradient k2), rho_k3 (ratio differentiated): the gradient of KL(policy, reference)
                k3: that of KL(reference, policy), GRPO's choice
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor

from posttrain.config import Settings
from posttrain.functional.groups import centred, standardised
from posttrain.functional.kl import k2, k3, k3_corrected, k3_k2
from posttrain.functional.recursion import backward_sum
from posttrain.functional.surrogates import clip_sides
from posttrain.stats import Stat
from posttrain.types import Group, Loss, Rollout, Sample, TokenBatch

Estimator = Literal["k1", "k2", "k3", "k3_k2", "rho_k3"]
Estimate = Callable[[Tensor], Tensor]
"""From the rewards [G] of one group to its advantages [G]."""

NOT_IN_LOSS = "k1 as a loss has expected gradient 0: use k2, k3_k2 or k3 in the loss, or kl_place = 'reward'"
NOT_IN_REWARD = "{} in the reward gives a biased gradient (arXiv 2512.21852): only k1 belongs there"
WRONG_RATIO = (
    "with the ratio detached, k3 has the gradient of the opposite KL: use rho_k3, whose ratio is differentiated, or k2"
)


class LossKL(Settings):
    """A penalty on the KL to the reference, in the loss."""

    kl_coefficient: float = Field(0.0, ge=0)
    """beta; 0 needs no reference model."""
    kl_estimator: Estimator = "k3"
    """Estimator of the KL to the reference."""

    @field_validator("kl_estimator", mode="before")
    @classmethod
    def _known(cls, value: str) -> str:
        if value in ("sg_rho_k3", "detached_rho_k3"):
            raise ValueError(WRONG_RATIO)
        return value

    @model_validator(mode="after")
    def _right_place(self) -> LossKL:
        if self.kl_in_reward and self.kl_estimator != "k1":
            raise ValueError(NOT_IN_REWARD.format(self.kl_estimator))
        if not self.kl_in_reward and self.kl_estimator == "k1":
            raise ValueError(NOT_IN_LOSS)
        return self

    @property
    def kl_in_reward(self) -> bool:
        """Whether the penalty is part of the reward."""
        return getattr(self, "kl_place", "loss") == "reward"

    @property
    def kl_streams(self) -> dict[str, str]:
        """The weight stream of a KL inside the loss, if there is one; it is reduced like the policy's."""
        inside = self.kl_coefficient and not self.kl_in_reward
        return {"kl": getattr(self, "reduction", "token-mean")} if inside else {}


class PlacedKL(LossKL):
    """A penalty on the KL to the reference, in the reward or in the loss."""

    kl_place: Literal["reward", "loss"] = "loss"
    """In the reward (k1, with return-to-go) or in the loss (k2, k3_k2, rho_k3 or k3)."""


class GroupScale(Settings):
    """How a group's rewards become advantages: (r - mean) / (std + epsilon)."""

    scale: Literal["group_std", "none"] = "group_std"
    """What the centred reward is divided by."""
    ddof: Literal[0, 1] = 1
    """Degrees of freedom taken from the standard deviation."""
    epsilon: float = Field(1e-6, ge=0)
    """Added to the standard deviation."""

    def estimate(self, rewards: Tensor) -> Tensor:
        """Advantages [G] of one group's rewards; exactly 0 where they are equal or there is only one."""
        if self.scale == "none":
            return centred(rewards)
        return standardised(rewards, epsilon=self.epsilon, ddof=self.ddof)


def by_group(groups: Sequence[Group], estimate: Estimate) -> list[list[np.ndarray]]:
    """One number per rollout, from the rewards of its group alone."""
    return [
        [np.asarray(a) for a in estimate(torch.tensor(group.rewards, dtype=torch.float64)).tolist()] for group in groups
    ]


def over_batch(groups: Sequence[Group], estimate: Estimate) -> list[list[np.ndarray]]:
    """One number per rollout, from the rewards of all groups of the batch."""
    rewards = torch.tensor([r for group in groups for r in group.rewards], dtype=torch.float64)
    found = iter(estimate(rewards).tolist())
    return [[np.asarray(next(found)) for _ in group.rollouts] for group in groups]


def token_turns(rollout: Rollout) -> np.ndarray:
    """Turn of each sampled token of a rollout, int64 [sampled tokens], segment after segment."""
    found = [
        turn
        for segment in rollout.segments
        for turn, sampled in zip(segment.turns, segment.loss_mask, strict=True)
        if sampled
    ]
    return np.asarray(found, dtype=np.int64)


def turn_rewards(rollout: Rollout) -> list[float]:
    """What each turn earned: the environment's scores after it; all else of the reward belongs to the last turn."""
    count = max(rollout.turn_count, 1)
    earned = [sum(scores.values()) for scores in rollout.turn_scores] + [0.0] * count
    earned = earned[:count]
    assert rollout.reward is not None
    earned[-1] += rollout.reward - sum(earned)
    return earned


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TokenBook:
    """All trained tokens of a batch, rollout after rollout; segments of one rollout follow each other."""

    samples: Sequence[Sample]
    """The batch."""
    rows: Tensor
    """int64 [N]: number of each token's rollout, ascending."""
    groups: Tensor
    """int64 [rollouts]: position of each rollout's group."""
    rewards: Tensor
    """float64 [rollouts]."""

    @property
    def count(self) -> int:
        """Number of rollouts."""
        return len(self.groups)

    def read(self, name: str) -> Tensor:
        """A field of the samples at the trained tokens, [N]; ValueError if a sample lacks it."""
        arrays = [getattr(sample, name) for sample in self.samples]
        if any(array is None for array in arrays):
            raise ValueError(f"refine needs {name}, and a sample has none")
        parts = [array[sample.loss_mask] for array, sample in zip(arrays, self.samples, strict=True)]
        return torch.from_numpy(np.concatenate([np.zeros(0), *parts]))

    def written(self, name: str, values: Tensor, *, empty: float | bool = np.nan) -> list[Sample]:
        """The samples with a field set from flat ``values`` [N], ``empty`` where nothing trains."""
        flat, used, changed = values.numpy(), 0, []
        for sample in self.samples:
            row = np.full(len(sample), empty, dtype=flat.dtype)
            length = int(sample.loss_mask.sum())
            row[sample.loss_mask] = flat[used : used + length]
            used += length
            field: dict[str, Any] = {name: row}
            changed.append(replace(sample, **field))
        return changed

    def kl_to_go(self) -> Tensor:
        """Sum of k1 = log p_old - log p_ref over this and the later tokens of the rollout, [N], detached."""
        return backward_sum(self.read("old_logprobs") - self.read("ref_logprobs"), 1.0, self.rows, self.count)


def open_book(samples: Sequence[Sample]) -> TokenBook:
    """Number the rollouts of a batch; ValueError if segments of one rollout do not follow each other."""
    numbers: dict[tuple[int, int], int] = {}
    firsts: list[Sample] = []
    for sample in samples:
        if numbers.setdefault((sample.group, sample.rollout), len(numbers)) == len(firsts):
            firsts.append(sample)
    order = [numbers[(sample.group, sample.rollout)] for sample in samples]
    if order != sorted(order):
        raise ValueError("the segments of a rollout must follow each other in the batch")
    lengths = [int(sample.loss_mask.sum()) for sample in samples]
    return TokenBook(
        samples=samples,
        rows=torch.from_numpy(np.repeat(np.asarray(order, np.int64), np.asarray(lengths, np.int64))),
        groups=torch.tensor([sample.group for sample in firsts], dtype=torch.int64),
        rewards=torch.tensor([sample.reward for sample in firsts], dtype=torch.float64),
    )


def less_kl_to_go(samples: Sequence[Sample], coefficient: float) -> list[Sample]:
    """The samples with coefficient x the KL to go taken from each token's advantage: k1 in the reward, undiscounted."""
    book = open_book(samples)
    return book.written("advantages", book.read("advantages") - coefficient * book.kl_to_go())


def anchor(batch: TokenBatch, logprobs: Tensor) -> Tensor:
    """The old log-probabilities [N]; in the first step of an update they are the current ones, detached."""
    return logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs


def kl_term(config: LossKL, batch: TokenBatch, logprobs: Tensor) -> dict[str, Tensor]:
    """``{"kl": beta x estimate [N]}`` for a KL inside the loss, else nothing."""
    if not config.kl_streams:
        return {}
    assert batch.ref_logprobs is not None
    if config.kl_estimator == "rho_k3":
        value = k3_corrected(logprobs, batch.ref_logprobs, anchor(batch, logprobs))
    else:
        value = {"k2": k2, "k3": k3, "k3_k2": k3_k2}[config.kl_estimator](logprobs, batch.ref_logprobs)
    return {"kl": config.kl_coefficient * value}


def weighted(batch: TokenBatch, parts: Mapping[str, Tensor], stats: Mapping[str, Stat] | None = None) -> Loss:
    """Sum every part's token losses [N] under the part's own weights, and report each."""
    sums = {name: (batch.token_weight[name] * losses).sum() for name, losses in parts.items()}
    total = torch.stack(list(sums.values())).sum()
    numbers = {f"loss/{name}": Stat(kind="sum", value=float(value.detach())) for name, value in sums.items()}
    numbers["loss"] = Stat(kind="sum", value=float(total.detach()))
    return Loss(total=total, stats={**numbers, **(stats or {})})


def clip_shares(ratio: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float) -> dict[str, Stat]:
    """Share of tokens whose gradient each side of the clip stops."""
    low, high = clip_sides(ratio.detach(), advantages, clip_low=clip_low, clip_high=clip_high)
    return {"clip_share/low": share(low), "clip_share/high": share(high)}


def share(where: Tensor) -> Stat:
    """Share of true entries of bool [N]."""
    return Stat(kind="mean", value=float(where.sum()), count=where.numel())
