"""GiGPO, group-in-group policy optimization: https://arxiv.org/abs/2505.10978, eq. 4 to 8.

Assumes agents that meet the same state in several rollouts of one task. What the environment said before a turn is the
state's name, so it must tell apart everything observable.

    A_E(i)    = (R_i - mean(R)) / F                      over the rollouts of the group, each counted once
    A_S(i, k) = (G_ik - mean) / F                        over all turns of the group that begin in the same state
    A(i, k)   = A_E(i) + omega A_S(i, k)                 for every token of turn k
    G_ik      = sum_{j >= k} gamma^(j - k) r_ij

omega 1, gamma 0.95, KL 0.01 in the loss are the paper's; F is 1 (scale none) or the standard deviation, both there.
r_ij is what the environment scored after turn j; all else of the reward is the last turn's. A state that is met once
gives 0. With one turn the state is the prompt, and A is (1 + omega) times the episode's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from posttrain.functional.ratios import token_ratio
from posttrain.functional.step_groups import gigpo
from posttrain.functional.surrogates import clipped
from posttrain.policy_gradient import LossKL, anchor, clip_shares, kl_term, token_turns, turn_rewards, weighted
from posttrain.types import Group, Loss, Needs, Rollout, TokenBatch

__all__ = ["Config", "GiGPO"]


class Config(LossKL):
    """The paper's terms."""

    kl_coefficient: float = Field(0.01, ge=0)
    """beta; 0 needs no reference model."""
    omega: float = Field(1.0, ge=0)
    """Weight of the step level."""
    discount: float = Field(0.95, gt=0, le=1)
    """gamma, per turn."""
    scale: Literal["none", "group_std"] = "none"
    """F of both levels."""
    epsilon: float = Field(1e-6, ge=0)
    """Added to the standard deviation."""
    clip_low: float = Field(0.2, gt=0, le=1)
    """How far below 1 the ratio may push."""
    clip_high: float = Field(0.2, gt=0)
    """How far above 1 the ratio may push."""
    reduction: str = "token-mean"
    """Token weights: see posttrain.functional.reduce."""


class GiGPO:
    """Rollouts compared as a whole, and turns where they met."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.needs = Needs(
            group_size=2,
            ref_logprobs=config.kl_coefficient > 0,
            streams={"policy": config.reduction, **config.kl_streams},
        )

    def keep(self, group: Group) -> bool:
        """Every group trains."""
        return True

    def advantages(self, groups: Sequence[Group]) -> list[list[np.ndarray]]:
        """One number per sampled token, the same inside a turn."""
        return [self._group(group) for group in groups]

    def _group(self, group: Group) -> list[np.ndarray]:
        counts = [max(rollout.turn_count, 1) for rollout in group.rollouts]
        names = [state for rollout in group.rollouts for state in turn_states(rollout)]
        labels = {name: number for number, name in enumerate(dict.fromkeys(names))}
        turns = gigpo(
            torch.tensor(group.rewards, dtype=torch.float64),
            torch.tensor([r for rollout in group.rollouts for r in turn_rewards(rollout)], dtype=torch.float64),
            torch.from_numpy(np.repeat(np.arange(len(counts)), counts)),
            torch.tensor([labels[name] for name in names], dtype=torch.int64),
            omega=self.config.omega,
            discount=self.config.discount,
            scale=self.config.scale == "group_std",
            epsilon=self.config.epsilon,
        ).numpy()
        starts = np.cumsum([0, *counts])
        return [turns[s + token_turns(r)] for s, r in zip(starts, group.rollouts, strict=False)]

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """Clipped surrogate + beta x KL."""
        bounds = {"clip_low": self.config.clip_low, "clip_high": self.config.clip_high}
        ratio = token_ratio(logprobs, anchor(batch, logprobs))
        policy = clipped(ratio, batch.advantages, **bounds)
        parts = {"policy": policy, **kl_term(self.config, batch, logprobs)}
        return weighted(batch, parts, clip_shares(ratio, batch.advantages, **bounds))


def turn_states(rollout: Rollout) -> list[str]:
    """What the environment had just said before each completion, as text: one anchor state per turn."""
    count = max(rollout.turn_count, 1)
    places = [i for i, message in enumerate(rollout.messages) if message.get("role") == "assistant"][-count:]
    if len(places) < count:
        return [""] * count
    starts = [0, *(place + 1 for place in places[:-1])]
    spans = [rollout.messages[a:b] for a, b in zip(starts, places, strict=True)]
    return [json.dumps([dict(m) for m in span], sort_keys=True, default=str) for span in spans]
