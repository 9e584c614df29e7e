"""Supervised fine-tuning: imitate the demonstrated tokens, the stop token included.

L = -sum_t w_t log p(token_t), with w = 1 / N over all demonstrated tokens of the optimizer step (token-mean)
or 1 / (C n) (seq-mean-token-mean). Packed and padded batches give the same loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from torch import Tensor

from posttrain.config import Settings
from posttrain.types import Group, Loss, Needs, Stat, TokenBatch

__all__ = ["SFT", "Config"]


class Config(Settings):
    """Options of supervised fine-tuning."""

    reduction: Literal["token-mean", "seq-mean-token-mean"] = "token-mean"
    """Whether every token or every demonstration counts the same."""


class SFT:
    """Negative log-likelihood of demonstrations."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.needs = Needs(engine=False, streams={"policy": config.reduction})

    def keep(self, group: Group) -> bool:
        """Every demonstration trains."""
        return True

    def advantages(self, groups: Sequence[Group]) -> list[list[np.ndarray]]:
        """Imitation is a policy gradient whose advantage is one."""
        return [[np.asarray(1.0) for _ in group.rollouts] for group in groups]

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """Weighted negative log-likelihood."""
        total = -(batch.token_weight["policy"] * logprobs).sum()
        return Loss(total=total, stats={"loss": Stat(kind="sum", value=float(total.detach()))})
