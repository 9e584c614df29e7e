"""CPO, contrastive preference optimisation: https://arxiv.org/abs/2401.08417, eq. 5 and 6.

Assumes chosen answers near perfect, so that a uniform reference is an upper bound of DPO's loss and imitating them
takes the reference's place:

    L = mean over pairs of -log sigmoid(beta (log pi(chosen) - log pi(rejected))) + coefficient NLL(chosen)

Defaults: beta 0.1 and coefficient 1 are the paper's; the likelihood's divisor is its code's (fe1ixxu/ALMA), one mean
over all chosen tokens of the step, where the formula has a plain sum (nll_normaliser = "sequence_sum").
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from posttrain.config import Settings
from posttrain.functional.preference_free import cpo
from posttrain.functional.preference_pairs import Normaliser, chosen_nll
from posttrain.pairing import Comparing, build_pairs, find_answers, make_loss, pair_stats
from posttrain.types import Loss, Needs, TokenBatch

__all__ = ["CPO", "Config"]


class Config(Settings):
    """The paper's constants."""

    beta: float = Field(0.1, gt=0)
    """Factor of the log-probabilities."""
    nll_coefficient: float = Field(1.0, ge=0)
    """Factor of the chosen answer's negative log-likelihood."""
    nll_normaliser: Normaliser = "batch_token_mean"
    """Divisor of that term."""


class CPO(Comparing):
    """Preference without a reference, held by imitation."""

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
        nll = chosen_nll(pairs, config.nll_normaliser, **self.pair_totals(batch, pairs))
        parts = {
            "preference": weight * cpo(pairs, beta=config.beta).sum(),
            "nll": config.nll_coefficient * weight * nll.sum(),
        }
        return make_loss(parts, pair_stats(pairs, beta=config.beta), logprobs)
