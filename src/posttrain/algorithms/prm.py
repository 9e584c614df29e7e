"""Process reward model: every step of a solution gets a verdict; Let's verify step by step, arXiv 2305.20050.

Assumes tasks whose solution has one step per line and a label per step, 1 right, 0 wrong, or a share in between: soft
labels are the share of rollouts that end right from there (Math-Shepherd, https://arxiv.org/abs/2312.08935, eq. 2).

    L = mean over labelled steps of -[ y log sigmoid(s) + (1 - y) log(1 - sigmoid(s)) ]

s is a linear score head read at the step's last token. Defaults: both papers train on every labelled step;
PRM800K's steps after the first mistake have no label (``until_first_error`` leaves them out where data has them).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from posttrain.config import Settings
from posttrain.functional.recursion import last_of_row
from posttrain.functional.reward_models import step_losses, until_first_error
from posttrain.models.values import read_labelled
from posttrain.pairing import make_loss, mean_stat
from posttrain.policy_gradient import token_turns
from posttrain.types import Group, Loss, Needs, Rollout, Sample, TokenBatch

__all__ = ["PRM", "Config"]


class Config(Settings):
    """Which labelled steps train."""

    until_first_error: bool = False
    """Train no step after the first one labelled 0 of its solution."""


class PRM:
    """Trains a score head and its trunk to judge steps."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.needs = Needs(engine=False, values=True, scores=True, streams={"value": "token-mean"}, data="steps")

    def keep(self, group: Group) -> bool:
        """Every solution trains."""
        return True

    def advantages(self, groups: Sequence[Group]) -> list[list[np.ndarray]]:
        """The label of each step on its last token, NaN on every other."""
        return [[self._labels(rollout) for rollout in group.rollouts] for group in groups]

    def _labels(self, rollout: Rollout) -> np.ndarray:
        steps = torch.from_numpy(token_turns(rollout))
        given = rollout.task.columns["labels"]
        labels = torch.tensor([np.nan if label is None else float(label) for label in given], dtype=torch.float64)
        if self.config.until_first_error:
            kept = until_first_error(labels, torch.zeros(len(labels), dtype=torch.int64), 1)
            labels = labels.masked_fill(~kept, torch.nan)
        return torch.where(last_of_row(steps), labels[steps], torch.nan).numpy()

    def refine(self, samples: Sequence[Sample]) -> list[Sample]:
        """Read every solution at the last token of its labelled steps."""
        return [read_labelled(sample) for sample in samples]

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """Mean binary cross-entropy over the step's labelled solution steps."""
        assert values is not None
        labels = batch.advantages
        losses = batch.token_weight["value"] * step_losses(values, labels)
        sure = labels != 0.5
        right = (values > 0)[sure] == (labels > 0.5)[sure]
        return make_loss({"steps": losses.sum()}, {"accuracy": mean_stat(right)}, values)
