"""BCO, binary classifier optimisation: https://arxiv.org/abs/2404.04656.

Assumes single answers called good or bad from prompts of one distribution, and a reference:

    r = beta log(pi / ref) of an answer,  shift = half the sum of the running means of good and of bad answers' r
    L = mean over answers of -log sigmoid(r - shift) for good ones, -log sigmoid(shift - r) for bad ones

A classifier of good and bad whose logit is the reward; its loss bounds DPO's from above. The running means take the
batch in before it trains, as in TRL; they are state, kept in the checkpoint. Left out: the paper's density-ratio
weights for good and bad answers from different prompts. beta 0.1 is DPO's; the paper searches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from posttrain.config import Settings
from posttrain.functional.preference_unpaired import RewardShift, bco
from posttrain.pairing import Labelled, find_answers, label_stats, log_ratios, make_loss
from posttrain.types import Loss, Needs, Sample, TokenBatch

__all__ = ["BCO", "Config"]


class Config(Settings):
    """Options of the classifier."""

    beta: float = Field(0.1, gt=0)
    """How strongly the reference holds."""
    shift: bool = True
    """Take the running means off the rewards; false leaves the plain classifier."""


class BCO(Labelled):
    """A classifier whose logit is the implicit reward."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.needs = Needs(
            engine=False,
            ref_logprobs=True,
            old_logprobs=config.shift,
            streams={},
            separable=False,
            data="labels",
        )
        self.start = float(np.log(2.0))
        """The loss where policy equals reference."""
        self._shift = RewardShift()

    def refine(self, samples: Sequence[Sample]) -> list[Sample]:
        """Take the batch's rewards into the running means."""
        if self.config.shift:
            rewards = {(sample.group, sample.rollout): sample.reward for sample in samples}
            ratios = log_ratios(samples)
            values = self.config.beta * torch.tensor([ratios[key] for key in rewards], dtype=torch.float64)
            self._shift = self._shift.observe(values, torch.tensor(list(rewards.values())) > 0)
        return list(samples)

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """Mean over the step's answers; changes no state."""
        config, answers = self.config, find_answers(batch, logprobs)
        losses = bco(answers.log_ratios, answers.rewards > 0, beta=config.beta, shift=self._shift.value)
        parts = {"preference": self.answer_weight(batch, answers) * losses.sum()}
        threshold = self._shift.value / config.beta
        return make_loss(parts, label_stats(answers, beta=config.beta, threshold=threshold), logprobs)

    def numbers(self) -> dict[str, float]:
        """The shift of this batch."""
        return {"rewards/shift": self._shift.value}

    def state(self) -> dict[str, float]:
        """The running means."""
        shift = self._shift
        return {
            "desirable_sum": shift.desirable_sum,
            "desirable_count": float(shift.desirable_count),
            "undesirable_sum": shift.undesirable_sum,
            "undesirable_count": float(shift.undesirable_count),
        }

    def restore(self, state: Mapping[str, float]) -> None:
        """Continue from the running means of a checkpoint."""
        self._shift = RewardShift(
            desirable_sum=state["desirable_sum"],
            desirable_count=int(state["desirable_count"]),
            undesirable_sum=state["undesirable_sum"],
            undesirable_count=int(state["undesirable_count"]),
        )
