"""GKD, generalised knowledge distillation: Agarwal et al., https://arxiv.org/abs/2306.13649, algorithm 1.

Assumes tasks that bring a demonstration along, of which a share of batches is not used: there the student answers
itself and the teacher corrects its own prefixes. A coin per batch decides (a function of seed and step, so that a
resumed run and every rank agree); nothing is differentiated through sampling.

    L = sum_t w_t D(q || p)_t,   D = beta KL(q || m) + (1 - beta) KL(p || m),   m = beta q + (1 - beta) p

beta 0 is KL(q || p) and beta 1 is KL(p || q) by definition: the formula itself tends to 0 at both ends, so the loss
jumps there. Defaults: on-policy share 0.5 and beta 0.5, those of TRL's trainer; the paper tries beta 0.1, 0.5 and
0.9 and shares 0 to 1, and samples at temperature 1 (rollouts.temperature).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field
from torch import Tensor

from posttrain.config import Settings
from posttrain.functional.distill import jsd, log_softmax
from posttrain.functional.distill_topk import topk_divergence
from posttrain.policy_gradient import weighted
from posttrain.types import Group, Loss, Needs, Stat, TokenBatch

__all__ = ["GKD", "Config"]


class Config(Settings):
    """Every term of the formula."""

    beta: float = Field(0.5, ge=0, le=1)
    """Place between the forward KL (0) and the reverse KL (1)."""
    on_policy: float = Field(0.5, ge=0, le=1)
    """lambda: probability that a batch is sampled from the student instead of taken from the demonstrations."""
    reduction: str = "token-mean"
    """Token weights: see posttrain.functional.reduce."""


class GKD:
    """Divergence from the teacher on the student's and on given answers."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.needs = Needs(
            divergence=self._divergence, on_policy=config.on_policy, streams={"distillation": config.reduction}
        )

    def _divergence(self, student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
        """D at each token, [n]; at both ends in the form whose gradient vanishes exactly where both agree."""
        beta = self.config.beta
        if 0 < beta < 1:
            return jsd(student_logits, teacher_logits, beta=beta)
        student, teacher = log_softmax(student_logits), log_softmax(teacher_logits)
        return topk_divergence(student, teacher, direction="reverse" if beta else "forward", rest="generalised")

    def keep(self, group: Group) -> bool:
        """Every answer trains."""
        return True

    def advantages(self, groups: Sequence[Group]) -> list[list[np.ndarray]]:
        """There are none: zeros."""
        return [[np.asarray(0.0) for _ in group.rollouts] for group in groups]

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """Weighted divergence."""
        assert batch.divergence is not None
        found = batch.divergence.detach()
        far = Stat(kind="mean", value=float(found.double().sum()), count=len(found))
        return weighted(batch, {"distillation": batch.divergence}, {"kl_teacher": far})
