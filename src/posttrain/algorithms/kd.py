"""Knowledge distillation on given text: Hinton et al., https://arxiv.org/abs/1503.02531, section 2.

Assumes demonstrations (a teacher's own text, or any), the student's tokenizer and chat template in the teacher, and
that both agree on which prefixes matter: the student never sees its own mistakes (that is what gkd and opd are for).

    L = tau^2 sum_t w_t KL(q_tau || p_tau)_t + a sum_t w_t [-log p(token_t)],  p_tau = softmax(z / tau), q the teacher

The KL runs over the whole vocabulary at every demonstrated token, tile by tile. Its gradient by the logits is
tau (p_tau - q_tau), exactly 0 where both agree; tau^2 keeps its size comparable with the likelihood's, as section 2.1
says. Defaults: tau 1 and a 0, the plain forward KL of sequence-level practice (TRL, GKD with lambda 0).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field
from torch import Tensor

from posttrain.config import Settings
from posttrain.functional.distill import log_softmax
from posttrain.functional.distill_topk import topk_divergence
from posttrain.policy_gradient import weighted
from posttrain.types import Group, Loss, Needs, Stat, TokenBatch

__all__ = ["KD", "Config"]


class Config(Settings):
    """Every term of the formula."""

    temperature: float = Field(1.0, gt=0)
    """tau: softens both distributions."""
    likelihood_coefficient: float = Field(0.0, ge=0)
    """a: weight of the demonstration's own negative log-likelihood; 0 leaves it out."""
    reduction: str = "token-mean"
    """Token weights: see posttrain.functional.reduce."""


class KD:
    """Forward KL to the teacher on demonstrated tokens."""

    def __init__(self, config: Config) -> None:
        self.config = config
        streams = {"distillation": config.reduction}
        if config.likelihood_coefficient:
            streams["nll"] = config.reduction
        self.needs = Needs(engine=False, divergence=self._divergence, streams=streams)

    def _divergence(self, student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
        """tau^2 KL(q_tau || p_tau), [n]; written as sum q log(q / p) - q + p, whose gradient is exactly p - q."""
        tau = self.config.temperature
        student, teacher = (log_softmax(z, temperature=tau) for z in (student_logits, teacher_logits))
        return tau**2 * topk_divergence(student, teacher, direction="forward", rest="generalised")

    def keep(self, group: Group) -> bool:
        """Every demonstration trains."""
        return True

    def advantages(self, groups: Sequence[Group]) -> list[list[np.ndarray]]:
        """There are none: zeros."""
        return [[np.asarray(0.0) for _ in group.rollouts] for group in groups]

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """Weighted divergence, plus the demonstration's likelihood if asked for."""
        assert batch.divergence is not None
        parts = {"distillation": batch.divergence}
        if self.config.likelihood_coefficient:
            parts["nll"] = -self.config.likelihood_coefficient * logprobs
        found = batch.divergence.detach()
        far = Stat(kind="mean", value=float(found.double().sum()), count=len(found))
        return weighted(batch, parts, {"kl_teacher": far})
