"""Plackett-Luce DPO on ranked answers: https://arxiv.org/abs/2305.18290, appendix A.3, eq. 18.

Assumes a reference and answers of one prompt in order of preference:

    r = beta log(pi / ref)
    L = mean over prompts of sum over ranks k of [ logsumexp over answers k and worse of r - r_k ]

Two answers are DPO; one best with tied losers is S-DPO. Tied answers are not compared with each other. Unlike the
softmax it learns the order among the losers too. beta 0.1 is DPO's.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from posttrain.config import Settings
from posttrain.functional.preference_lists import plackett_luce
from posttrain.pairing import Comparing, build_pairs, find_answers, list_weight, make_loss, pair_stats
from posttrain.types import Loss, Needs, TokenBatch

__all__ = ["Config", "PlackettLuce"]


class Config(Settings):
    """Options of the ranking loss."""

    beta: float = Field(0.1, gt=0)
    """How strongly the reference holds."""


class PlackettLuce(Comparing):
    """The likelihood of the whole order."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.needs = Needs(
            engine=False,
            group_size=2,
            ref_logprobs=True,
            streams={},
            separable=False,
            whole_groups=True,
            data="rankings",
        )

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """Mean over the step's prompts; an answer without a reward is in no order."""
        answers = find_answers(batch, logprobs)
        scores = self.config.beta * answers.log_ratios
        losses = plackett_luce(scores, -answers.rewards, answers.groups, answers.group_count)
        parts = {"preference": list_weight(batch, answers) * losses.sum()}
        return make_loss(parts, pair_stats(build_pairs(answers), beta=self.config.beta), logprobs)
