"""DAPO: https://arxiv.org/abs/2503.14476, section 3.

Assumes rollouts of one group share one prompt, and that drawing more prompts is cheaper than training on none.

    R_i  = r_i + soft(L_i)            soft: 0 up to limit - buffer sampled tokens, falling to -1 at the limit
    A_i  = (R_i - mean(R)) / (std(R) + epsilon)
    L    = 1/N sum_i sum_t -min(r_it A_i, clip(r_it, 1 - clip_low, 1 + clip_high) A_i)

Clip-higher 0.2 / 0.28; every token counts the same; groups whose task rewards are all equal are left out and replaced
by new ones (dynamic sampling, looked at before the punishment is added); no KL. Paper: group of 16, rewards +-1,
limit 20480, buffer 4096. Ten draws at most is its code's (verl). Overlong masking takes answers that were cut off out
of the loss and, with it, the pressure against length: combine it with the punishment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from posttrain.errors import ConfigError
from posttrain.functional.groups import degenerate
from posttrain.functional.overlong import among, soft_punishment
from posttrain.functional.ratios import token_ratio
from posttrain.functional.surrogates import clipped
from posttrain.policy_gradient import GroupScale, LossKL, anchor, clip_shares, kl_term, weighted
from posttrain.types import Ending, Group, Loss, Needs, Sample, TokenBatch

__all__ = ["DAPO", "Config"]


class Config(GroupScale, LossKL):
    """The paper's terms."""

    clip_low: float = Field(0.2, gt=0, le=1)
    """How far below 1 the ratio may push."""
    clip_high: float = Field(0.28, gt=0)
    """How far above 1 the ratio may push: higher, so that rare tokens can grow."""
    refills: int = Field(9, ge=0)
    """Draws after the first to replace groups that teach nothing; 0 leaves them out without replacement."""
    filter: bool = True
    """Leave out groups whose task rewards are all equal."""
    overlong_buffer: int | None = Field(None, ge=0)
    """Sampled tokens before the limit in which the punishment grows; None: a fifth of the limit, 0: no punishment."""
    overlong_limit: int | None = Field(None, gt=0)
    """Sampled tokens at which the punishment is full; None: what a rollout may sample at most."""
    overlong_factor: float = Field(1.0, ge=0)
    """Full punishment, in reward."""
    overlong: Literal["train", "mask", "leave_out"] = "train"
    """Cut-off answers: train, be masked but count in the group's mean, or count nowhere."""
    reduction: str = "token-mean"
    """Token weights: see posttrain.functional.reduce."""


class DAPO:
    """Clip-higher, dynamic sampling, token mean, soft overlong punishment."""

    def __init__(self, config: Config, token_limit: int | None = None) -> None:
        self.config = config
        self.limit = config.overlong_limit or token_limit or 20480
        self.buffer = max(self.limit // 5, 1) if config.overlong_buffer is None else config.overlong_buffer
        if self.buffer > self.limit:
            raise ConfigError(f"dapo: overlong_buffer = {self.buffer} is more than the limit of {self.limit} tokens")
        self.needs = Needs(
            group_size=2,
            ref_logprobs=config.kl_coefficient > 0,
            streams={"policy": config.reduction, **config.kl_streams},
            refill=config.refills if config.filter else 0,
        )

    def keep(self, group: Group) -> bool:
        """Leave out groups whose task rewards are all equal."""
        return not (self.config.filter and degenerate(torch.tensor(group.rewards, dtype=torch.float64)))

    def advantages(self, groups: Sequence[Group]) -> list[list[np.ndarray]]:
        """One number per rollout; a group of equal task rewards stays at 0, whatever its lengths."""
        return [[np.asarray(a) for a in self._group(group).tolist()] for group in groups]

    def _group(self, group: Group) -> Tensor:
        rewards = torch.tensor(group.rewards, dtype=torch.float64)
        if degenerate(rewards):
            return torch.zeros_like(rewards)
        if self.buffer:
            lengths = torch.tensor([rollout.sampled_count for rollout in group.rollouts])
            factor = self.config.overlong_factor
            rewards = rewards + soft_punishment(lengths, limit=self.limit, buffer=self.buffer, factor=factor)
        if self.config.overlong == "leave_out":
            return among(self.config.estimate, rewards, torch.tensor([not r.truncated for r in group.rollouts]))
        return self.config.estimate(rewards)

    def refine(self, samples: Sequence[Sample]) -> list[Sample]:
        """Take cut-off answers out of the loss, if they are masked."""
        if self.config.overlong == "train":
            return list(samples)
        cut = [sample.ending is Ending.LENGTH for sample in samples]
        return [replace(s, loss_mask=np.zeros_like(s.loss_mask)) if c else s for s, c in zip(samples, cut, strict=True)]

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """Clipped surrogate + beta x KL."""
        bounds = {"clip_low": self.config.clip_low, "clip_high": self.config.clip_high}
        ratio = token_ratio(logprobs, anchor(batch, logprobs))
        policy = clipped(ratio, batch.advantages, **bounds)
        parts = {"policy": policy, **kl_term(self.config, batch, logprobs)}
        return weighted(batch, parts, clip_shares(ratio, batch.advantages, **bounds))
