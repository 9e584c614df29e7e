"""Reward model from comparisons: Bradley and Terry 1952 as in InstructGPT, https://arxiv.org/abs/2203.02155, eq. 1.

Assumes each group holds answers to one prompt whose rewards say which is better; scores mean nothing between prompts.

    bradley_terry   L = mean over groups of mean over ordered pairs [ -log sigmoid(s_w - s_l - margin (r_w - r_l))
                        + centring (s_w + s_l)^2 ]
    plackett_luce   L = mean over groups of sum_k [ log sum_{j not better than k} exp s_j - s_k ]   (whole rankings)

s is a linear score head read at the row's last sampled token, never at padding. Defaults: InstructGPT has neither
margin (Llama 2, arXiv 2307.09288 eq. 2) nor centring (arXiv 2312.09244: 0.01).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from posttrain.config import Settings
from posttrain.functional.masked import row_sum
from posttrain.functional.preference_lists import comparing, ordered_pairs, plackett_luce
from posttrain.functional.reward_models import bradley_terry
from posttrain.models.values import read_last
from posttrain.pairing import make_loss, mean_stat
from posttrain.types import Group, Loss, Needs, Sample, TokenBatch

__all__ = ["Config", "RewardModel"]


class Config(Settings):
    """The loss and its two additions."""

    loss: Literal["bradley_terry", "plackett_luce"] = "bradley_terry"
    """Every ordered pair of a group, or the likelihood of its whole ranking."""
    margin: float = Field(0.0, ge=0)
    """Gap asked for per unit of the difference in reward."""
    centring: float = Field(0.0, ge=0)
    """Pull of the scores towards zero, which pairs leave open."""

    @model_validator(mode="after")
    def _pairs_only(self) -> Config:
        if self.loss == "plackett_luce" and (self.margin or self.centring):
            raise ValueError("margin and centring belong to pairs: use loss = 'bradley_terry', or leave them out")
        return self


class RewardModel:
    """Trains a score head and its trunk."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.needs = Needs(
            engine=False,
            group_size=2,
            values=True,
            scores=True,
            streams={"value": "seq-mean-token-mean"},
            separable=False,
            whole_groups=True,
            data="rankings",
        )

    def keep(self, group: Group) -> bool:
        """Every group trains; one without a comparison adds nothing."""
        return True

    def advantages(self, groups: Sequence[Group]) -> list[list[np.ndarray]]:
        """There is no policy; who is better is in the rewards."""
        return [[np.asarray(0.0) for _ in group.rollouts] for group in groups]

    def refine(self, samples: Sequence[Sample]) -> list[Sample]:
        """Read every answer at its last sampled token."""
        return read_last(samples)

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """Mean over the step's groups with a comparison."""
        assert values is not None
        assert batch.groups is not None
        assert batch.rewards is not None
        scores, rewards = values.double(), batch.rewards[batch.samples].double()
        labels, groups = torch.unique(batch.groups[batch.samples], return_inverse=True)
        better, worse = ordered_pairs(-rewards, groups)
        share = 1 / max(batch.totals.get("comparing", float(comparing(-rewards, groups, len(labels)).sum())), 1.0)
        if self.config.loss == "plackett_luce":
            ranks = torch.unique(-rewards, return_inverse=True)[1]
            total = plackett_luce(scores, ranks, groups, len(labels)).sum()
        else:
            gap = self.config.margin * (rewards[better] - rewards[worse])
            losses = bradley_terry(scores[better], scores[worse], margin=gap, centring=self.config.centring)
            pairs = torch.bincount(groups[better], minlength=len(labels)).clamp(min=1)
            total = (row_sum(losses, groups[better], len(labels)) / pairs).sum()
        ahead = scores[better] - scores[worse]
        right = (ahead > 0).double() + 0.5 * (ahead == 0).double()
        stats = {"margin/mean": mean_stat(ahead), "accuracy": mean_stat(right), "tie_share": mean_stat(ahead == 0)}
        return make_loss({"preference": share * total}, stats, values)
