"""RFT, rejection fine-tuning: Yuan et al., https://arxiv.org/abs/2308.01825, section 3.3.

Sample, verify, keep the different right answers, at most so many per task, imitate them. Done batch after batch with
the newest weights it is expert iteration. Assumes a verifier whose yes can be trusted: a right answer by wrong
reasoning is imitated too.

    K_i = first ``cap`` of the different rollouts of task i with reward >= threshold
    L   = sum over the tokens of all K_i of w_t [-log p(token_t)]

It is REINFORCE with advantage 1 for what is kept and no word about the rest: tasks that nobody solves teach nothing.
The paper keeps distinct reasoning paths (by their equations); here the text without white space has to differ. The
cap of 4 keeps easy tasks from filling the batch; with reduction prompt-mean every task counts the same instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from pydantic import Field
from torch import Tensor

from posttrain.config import Settings
from posttrain.functional.search import keep_right
from posttrain.types import Group, Loss, Needs, Sample, Stat, TokenBatch

__all__ = ["RFT", "Config"]


class Config(Settings):
    """What is kept."""

    threshold: float = 1.0
    """The least reward that is right."""
    cap: int = Field(4, gt=0)
    """The most answers kept per task."""
    distinct: bool = True
    """Keep answers only once, white space aside."""
    reduction: str = "token-mean"
    """Token weights over what is kept: see posttrain.functional.reduce."""


class RFT:
    """Imitation of the policy's own right answers."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.needs = Needs(streams={"policy": config.reduction})

    def keep(self, group: Group) -> bool:
        """A task without a right answer is left out."""
        return any(reward >= self.config.threshold for reward in group.rewards)

    def advantages(self, groups: Sequence[Group]) -> list[list[np.ndarray]]:
        """One for what is kept, zero for the rest."""
        return [
            [np.asarray(float(i in kept)) for i in range(len(g.rollouts))] for g in groups for kept in [self._kept(g)]
        ]

    def _kept(self, group: Group) -> set[int]:
        texts = [rollout.text if self.config.distinct else str(i) for i, rollout in enumerate(group.rollouts)]
        right = [reward >= self.config.threshold for reward in group.rewards]
        return set(keep_right(texts, right, cap=self.config.cap))

    def refine(self, samples: Sequence[Sample]) -> list[Sample]:
        """Take the tokens of what is not kept out of the loss, so that they count in no denominator."""
        kept = [bool(np.any(sample.advantages[sample.loss_mask] != 0)) for sample in samples]
        return [
            sample if keep else replace(sample, loss_mask=np.zeros_like(sample.loss_mask))
            for sample, keep in zip(samples, kept, strict=True)
        ]

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """Weighted negative log-likelihood of what was kept."""
        total = -(batch.token_weight["policy"] * logprobs).sum()
        stats = {
            "loss": Stat(kind="sum", value=float(total.detach())),
            "samples/imitated": Stat(kind="sum", value=float(batch.sample_count)),
        }
        return Loss(total=total, stats=stats)
