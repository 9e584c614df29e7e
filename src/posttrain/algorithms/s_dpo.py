"""S-DPO, softmax DPO with several negatives: https://arxiv.org/abs/2406.09215, eq. 6.

Assumes one chosen answer and any number of rejected ones, which are not ordered among themselves:

    r = beta log(pi / ref)
    L = mean over prompts of -log softmax(r)_chosen = -log sigmoid(-log sum_j exp(r_j - r_chosen))

One negative is DPO. Computed by logsumexp, which cannot overflow (the paper's code sums exponentials). Losers are
pushed by their softmax weight only: for an order among them use plackett_luce. beta 0.1 is DPO's; the paper searches.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from posttrain.config import Settings
from posttrain.functional.preference_lists import all_pairs, softmax_negatives
from posttrain.pairing import Comparing, build_pairs, find_answers, list_weight, make_loss, pair_stats, winners
from posttrain.types import Loss, Needs, TokenBatch

__all__ = ["SDPO", "Config"]


class Config(Settings):
    """Options of the softmax loss."""

    beta: float = Field(0.1, gt=0)
    """How strongly the reference holds."""
    negatives: Literal["softmax", "pairwise"] = "softmax"
    """softmax is S-DPO; pairwise is the mean of DPO over the chosen answer and each negative of a prompt."""


class SDPO(Comparing):
    """The chosen answer against all negatives of its prompt at once."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.needs = Needs(
            engine=False,
            group_size=2,
            ref_logprobs=True,
            streams={},
            separable=False,
            whole_groups=True,
            data="preferences",
        )
        self.start = float(np.log(2.0)) if config.negatives == "pairwise" else None
        """The loss where policy equals reference, if the number of negatives does not change it."""

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """Mean over the step's prompts; rewards are beta x log ratio."""
        answers = find_answers(batch, logprobs)
        rewards = self.config.beta * answers.log_ratios
        best = winners(answers)
        if self.config.negatives == "softmax":
            losses = softmax_negatives(rewards, best, answers.groups, answers.group_count)
        else:
            losses = all_pairs(rewards, (~best).long(), answers.groups, answers.group_count)
        parts = {"preference": list_weight(batch, answers) * losses.sum()}
        return make_loss(parts, pair_stats(build_pairs(answers), beta=self.config.beta), logprobs)
