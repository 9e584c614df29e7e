"""VAPO, value-based augmented PPO for long reasoning: https://arxiv.org/abs/2504.05118, section 4.

Assumes 0/1 rewards of a verifier and a critic that was fitted to the policy's returns first ([critic] warmup_batches).

    lambda_critic = 1:  target_t = return_t          lambda_policy = 1 - 1 / (alpha n), by the rollout's length n
    L = mean_t [ -min(r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t) ] + value loss
        + nll_coefficient mean_{t of right rollouts} [ -log pi(token_t) ]

Defaults: section 4.2 to 4.5 and 5.1 (alpha 0.05, clip 0.2 and 0.28, nll 0.1, gamma 1, token-mean, no KL). The lambda
is kept in [0, 1]: the formula is negative below 1 / alpha tokens. The mean over right rollouts is over the whole step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import Field
from torch import Tensor

from posttrain.actor_critic import Earned, Line, ValueSettings, earned_by_turn, value_term
from posttrain.functional.gae import length_adaptive_lambda
from posttrain.functional.ratios import token_ratio
from posttrain.functional.surrogates import clipped
from posttrain.policy_gradient import anchor, clip_shares, weighted
from posttrain.types import Group, Loss, Needs, Sample, TokenBatch

__all__ = ["VAPO", "Config"]


class Config(ValueSettings):
    """The paper's terms; those of the critic are in posttrain.actor_critic."""

    clip_low: float = Field(0.2, gt=0, le=1)
    """How far below 1 the ratio may push."""
    clip_high: float = Field(0.28, gt=0)
    """How far above 1 the ratio may push (clip-higher)."""
    critic_lambda: float = Field(1.0, ge=0, le=1)
    """lambda of the critic's targets; 1 is the return itself."""
    alpha: float = Field(0.05, gt=0)
    """Inverse length below which the policy's lambda is 0."""
    nll_coefficient: float = Field(0.1, ge=0)
    """Factor of the likelihood of right rollouts."""
    reduction: str = "token-mean"
    """Token weights of policy and critic: see posttrain.functional.reduce."""


class VAPO:
    """Two passes of GAE with their own lambdas, and imitation of what was right."""

    def __init__(self, config: Config) -> None:
        self.config = config
        streams = {"policy": config.reduction, "value": config.reduction}
        if config.nll_coefficient:
            streams["nll"] = "positive-token-mean"
        self.needs = Needs(values=True, streams=streams)
        self._earned: Earned = {}
        self._seen: dict[str, float] = {}

    def keep(self, group: Group) -> bool:
        """Every group trains."""
        return True

    def advantages(self, groups: Sequence[Group]) -> list[list[np.ndarray]]:
        """Zero until `refine` knows the values; what each turn earned is kept for it."""
        self._earned = earned_by_turn(groups)
        return [[np.asarray(0.0) for _ in group.rollouts] for group in groups]

    def refine(self, samples: Sequence[Sample]) -> list[Sample]:
        """Targets with the critic's lambda, advantages with one lambda per rollout."""
        c, line = self.config, Line(samples, self.config, earned=self._earned)
        lengths = line.book.rows.bincount(minlength=line.book.count)
        adaptive = length_adaptive_lambda(lengths, alpha=c.alpha)
        _, targets = line.credit("token", gamma=c.gamma, lambda_=c.critic_lambda)
        advantages, _ = line.credit("token", gamma=c.gamma, lambda_=adaptive)
        self._seen = line.numbers(targets)
        return line.written(advantages, targets)

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """Clipped surrogate + value loss + likelihood of right rollouts."""
        c, ratio = self.config, token_ratio(logprobs, anchor(batch, logprobs))
        bounds = {"clip_low": c.clip_low, "clip_high": c.clip_high}
        critic, stats = value_term(c, batch, values)
        parts = {"policy": clipped(ratio, batch.advantages, **bounds), "value": critic}
        if c.nll_coefficient:
            parts["nll"] = -c.nll_coefficient * logprobs
        return weighted(batch, parts, {**clip_shares(ratio, batch.advantages, **bounds), **stats})

    def numbers(self) -> Mapping[str, float]:
        """Explained variance before the update."""
        return self._seen
