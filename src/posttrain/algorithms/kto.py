"""KTO, Kahneman-Tversky optimisation: https://arxiv.org/abs/2402.01306, eq. 7 and 8.

Assumes single answers called good or bad, no pairs (a preference row gives one of each), and a reference:

    r  = log pi - log ref of an answer
    z0 = max(0, mean of r over the step's mismatched rows: each prompt with the answer to the row before it)
    L  = mean over answers of  w_good (1 - sigmoid(beta (r - z0)))  or  w_bad (1 - sigmoid(beta (z0 - r)))

z0 has no gradient and is taken over the whole batch at its start, so a batch needs answers to two prompts. Defaults:
beta 0.1 and weights 1 as in the paper's experiments; with n_good and n_bad of each kind keep
w_good n_good / (w_bad n_bad) between 1 and 4/3 (eq. 8).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from posttrain.config import Settings
from posttrain.functional.preference_unpaired import kto, kto_baseline
from posttrain.pairing import Labelled, find_answers, label_stats, log_ratios, make_loss, mismatched_rows
from posttrain.types import Loss, Needs, Sample, TokenBatch

__all__ = ["KTO", "Config"]


class Config(Settings):
    """The paper's constants."""

    beta: float = Field(0.1, gt=0)
    """How strongly the reference holds."""
    desirable_weight: float = Field(1.0, gt=0)
    """w_good."""
    undesirable_weight: float = Field(1.0, gt=0)
    """w_bad."""


class KTO(Labelled):
    """Gains and losses against a reference point."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.needs = Needs(
            engine=False,
            groups=2,
            ref_logprobs=True,
            old_logprobs=True,
            streams={},
            separable=False,
            data="labels",
        )
        self.start = 0.5 if config.desirable_weight == config.undesirable_weight == 1.0 else None
        """The loss where policy equals reference, if both kinds weigh 1."""
        self.label_weights = config.model_dump(include={"desirable_weight", "undesirable_weight"})
        """What the check of the labels' balance compares with their counts."""
        self._baseline = 0.0

    def extend(self, samples: Sequence[Sample]) -> list[Sample]:
        """Show each prompt the answer to another one too."""
        return [*samples, *mismatched_rows(samples)]

    def refine(self, samples: Sequence[Sample]) -> list[Sample]:
        """Take z0 from the mismatched rows, which then leave the batch."""
        ratios = log_ratios([sample for sample in samples if np.isnan(sample.reward)])
        self._baseline = float(kto_baseline(torch.tensor(list(ratios.values()), dtype=torch.float64)))
        return [sample for sample in samples if not np.isnan(sample.reward)]

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """Mean over the step's answers; changes no state."""
        config, answers = self.config, find_answers(batch, logprobs)
        desirable = answers.rewards > 0
        losses = kto(
            answers.log_ratios,
            desirable,
            self._baseline,
            beta=config.beta,
            desirable_weight=config.desirable_weight,
            undesirable_weight=config.undesirable_weight,
        )
        parts = {"preference": self.answer_weight(batch, answers) * losses.sum()}
        return make_loss(parts, label_stats(answers, beta=config.beta, threshold=self._baseline), logprobs)

    def numbers(self) -> dict[str, float]:
        """The reference point of this batch."""
        return {"kl_ref/mismatched": self._baseline}
