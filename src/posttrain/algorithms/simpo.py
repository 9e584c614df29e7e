"""SimPO, simple preference optimisation: https://arxiv.org/abs/2405.14734, eq. 6.

Assumes that a policy's own average log-probability is a fair reward, so that no reference is needed:

    L = mean over pairs of -log sigmoid(beta (log pi(chosen) / n_chosen - log pi(rejected) / n_rejected) - gamma)

gamma is given as gamma / beta, the unit of the paper's section 4. Nothing holds the policy: use a small learning rate.
Defaults: beta 2.0 and gamma / beta 0.5, the lower ends of the ranges of the paper's table 7 (2.0 to 10, 0.3 to 0.5).
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from posttrain.config import Settings
from posttrain.functional.preference_free import simpo
from posttrain.functional.preference_pairs import Normaliser, chosen_nll
from posttrain.pairing import Comparing, build_pairs, find_answers, make_loss, pair_stats
from posttrain.types import Loss, Needs, TokenBatch

__all__ = ["Config", "SimPO"]


class Config(Settings):
    """The paper's constants."""

    beta: float = Field(2.0, gt=0)
    """Factor of the average log-probabilities."""
    margin_ratio: float = Field(0.5, ge=0)
    """gamma / beta: by how much the chosen answer is to lead."""
    nll_coefficient: float = Field(0.0, ge=0)
    """Factor of the chosen answer's negative log-likelihood (CPO-SimPO); 0 is SimPO."""
    nll_normaliser: Normaliser = "batch_token_mean"
    """Divisor of that term."""


class SimPO(Comparing):
    """Average log-probability as the reward, with a margin."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.needs = Needs(
            engine=False, group_size=2, streams={}, separable=False, whole_groups=True, data="preferences"
        )

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """Mean over the step's pairs."""
        config = self.config
        pairs = build_pairs(find_answers(batch, logprobs, reference=False))
        weight = self.pair_weight(batch, pairs)
        losses = simpo(pairs, beta=config.beta, margin_ratio=config.margin_ratio)
        parts = {"preference": weight * losses.sum()}
        if config.nll_coefficient:
            nll = chosen_nll(pairs, config.nll_normaliser, **self.pair_totals(batch, pairs))
            parts["nll"] = config.nll_coefficient * weight * nll.sum()
        return make_loss(parts, pair_stats(pairs, beta=config.beta, average=True), logprobs)
