"""ORPO, odds ratio preference optimisation: https://arxiv.org/abs/2403.07691, eq. 6 and 7.

Assumes supervised fine-tuning and preference learning can be one stage, without a reference:

    p = exp(mean token log-probability),  odds = p / (1 - p)
    L = mean over pairs of NLL(chosen) / n_chosen - lambda log sigmoid(log(odds(chosen) / odds(rejected)))

The likelihood covers the answer only (TRL's covers the prompt as well). lambda 0.1 is the paper's (section 5.1).
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from posttrain.config import Settings
from posttrain.functional.preference_free import odds_ratio
from posttrain.pairing import Comparing, build_pairs, find_answers, make_loss, pair_stats
from posttrain.types import Loss, Needs, TokenBatch

__all__ = ["ORPO", "Config"]


class Config(Settings):
    """The paper's constant."""

    weight: float = Field(0.1, ge=0)
    """lambda: factor of the odds ratio term."""


class ORPO(Comparing):
    """Imitation with an odds ratio penalty."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.needs = Needs(
            engine=False, group_size=2, streams={}, separable=False, whole_groups=True, data="preferences"
        )

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """Mean over the step's pairs."""
        pairs = build_pairs(find_answers(batch, logprobs, reference=False))
        weight = self.pair_weight(batch, pairs)
        parts = {
            "nll": -weight * pairs.chosen_average.sum(),
            "preference": self.config.weight * weight * odds_ratio(pairs).sum(),
        }
        return make_loss(parts, pair_stats(pairs, beta=self.config.weight, average=True), logprobs)
