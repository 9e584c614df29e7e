"""PPO, proximal policy optimization: https://arxiv.org/abs/1707.06347, eq. 7 and 9; for language models as in
InstructGPT, https://arxiv.org/abs/2203.02155, with Ziegler et al.'s KL to a frozen reference (arXiv 1909.08593).

Assumes a critic whose values V are of the states before the sampled tokens.

    A_t = GAE(reward - beta (log pi_old - log pi_ref), V),   target_t = A_t + V_t,   then A whitened over the batch
    L   = mean_t [ -min(r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t) ]
          + value_coefficient / 2 mean_t max((V - target)^2, (V_old + clip(V - V_old, +-value_clip) - target)^2)
          - entropy_coefficient mean_t H_t   (+ beta mean_t KL_t, if kl_place is the loss)

Defaults: clip 0.2 (PPO, table 3); beta 0.02, gamma 1, lambda 0.95 (InstructGPT, appendix C.4); value clip 0.2 and
whitening from the released code of both. Several passes over a batch are batches.epochs and batches.minibatches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from posttrain.actor_critic import ControlSettings, Earned, GaeSettings, Line, Steering, earned_by_turn, value_term
from posttrain.functional.ratios import token_ratio
from posttrain.functional.surrogates import clipped
from posttrain.policy_gradient import Estimator, PlacedKL, anchor, clip_shares, kl_term, weighted
from posttrain.types import Group, Loss, Needs, Sample, TokenBatch

__all__ = ["PPO", "Config"]


class Config(GaeSettings, ControlSettings, PlacedKL):
    """Every term of the formula; those of GAE, critic and controllers are in posttrain.actor_critic."""

    clip_low: float = Field(0.2, gt=0, le=1)
    """How far below 1 the ratio may push."""
    clip_high: float = Field(0.2, gt=0)
    """How far above 1 the ratio may push."""
    dual_clip: float | None = Field(None, gt=1)
    """Bound on the loss of tokens with negative advantage, in advantages; None leaves it out."""
    kl_coefficient: float = Field(0.02, ge=0)
    """beta, or where an adaptive beta begins; 0 needs no reference model."""
    kl_estimator: Estimator = "k1"
    """Estimator of the KL to the reference: k1 in the reward, another one in the loss."""
    kl_place: Literal["reward", "loss"] = "reward"
    """In the reward credit for the KL flows back to earlier tokens; in the loss each token pays its own."""
    reduction: str = "token-mean"
    """Token weights of every part: see posttrain.functional.reduce."""


class PPO:
    """Actor, critic and, with beta, a frozen reference."""

    def __init__(self, config: Config) -> None:
        self.config = c = config
        bonus = {"entropy": c.reduction} if c.entropy_coefficient or c.entropy_target else {}
        streams = {"policy": c.reduction, "value": c.reduction, **c.kl_streams, **bonus}
        kl = c.kl_coefficient > 0
        self.needs = Needs(values=True, ref_logprobs=kl, old_logprobs=kl, entropy=bool(bonus), streams=streams)
        self.steering = Steering(c, c.kl_coefficient)
        self.observe, self.state, self.restore = self.steering.observe, self.steering.state, self.steering.restore
        self._earned: Earned = {}
        self._seen: dict[str, float] = {}

    def keep(self, group: Group) -> bool:
        """Every group trains: the critic, not the group, is the baseline."""
        return True

    def advantages(self, groups: Sequence[Group]) -> list[list[np.ndarray]]:
        """Zero until `refine` knows the values; what each turn earned is kept for it."""
        self._earned = earned_by_turn(groups)
        return [[np.asarray(0.0) for _ in group.rollouts] for group in groups]

    def refine(self, samples: Sequence[Sample]) -> list[Sample]:
        """Advantages and targets from rewards, KL and the critic's values."""
        beta = self.steering.kl.coefficient * self.config.kl_in_reward
        line = Line(samples, self.config, earned=self._earned, kl_coefficient=beta)
        if self.needs.ref_logprobs:
            self.steering.measure(line.book)
        advantages, targets = self.config.credit(line)
        self._seen = line.numbers(targets)
        return line.written(advantages, targets)

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """Clipped surrogate + value loss + beta x KL - coefficient x entropy."""
        c, ratio = self.config, token_ratio(logprobs, anchor(batch, logprobs))
        bounds = {"clip_low": c.clip_low, "clip_high": c.clip_high}
        critic, stats = value_term(c, batch, values)
        parts = {"policy": clipped(ratio, batch.advantages, dual_clip=c.dual_clip, **bounds), "value": critic}
        for name, losses in kl_term(c, batch, logprobs).items():
            parts[name] = losses * (self.steering.kl.coefficient / c.kl_coefficient)
        if self.needs.entropy and entropy is not None:
            parts["entropy"] = -self.steering.bonus * entropy
        return weighted(batch, parts, {**clip_shares(ratio, batch.advantages, **bounds), **stats})

    def numbers(self) -> Mapping[str, float]:
        """Explained variance before the update, and the coefficients used."""
        return {**self._seen, **self.steering.numbers()}
