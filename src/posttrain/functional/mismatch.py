"""Correct for tokens that another policy sampled: the engine's (rollout) against the learner's (old).

Three policies: rollout sampled, old is the learner's own recompute when the update starts, the current one trains.
log w = old_logprobs - rollout_logprobs. Either of two forms, never both, which would count the gap twice:

decoupled   f(w) x clipped(pi / old)        AReaL, arXiv 2505.24298: the clip is centred on the fresh policy
bypass      clipped(pi / rollout)           rollout stands in for old; no weight

Both functions return (ratio, weight) whose product is pi / rollout where f leaves w alone, so a loss that uses
exactly these two cannot double count. Everything is computed from logs, so long rows do not overflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from posttrain.functional.masked import row_mean, row_sum
from posttrain.functional.ratios import LIMIT, token_ratio
from posttrain.functional.surrogates import reinforce

Weigh = Callable[[Tensor], Tensor]
"""From log w [N] to the weight [N]."""


def decoupled(logprobs: Tensor, old_logprobs: Tensor, rollout_logprobs: Tensor, weigh: Weigh) -> tuple[Tensor, Tensor]:
    """(pi / old with gradient, weigh(log w) detached), [N] each."""
    return token_ratio(logprobs, old_logprobs), weigh((old_logprobs - rollout_logprobs).detach()).detach()


def bypass(logprobs: Tensor, rollout_logprobs: Tensor) -> tuple[Tensor, Tensor]:
    """(pi / rollout with gradient, exactly 1), [N] each: saves the recompute of old."""
    return token_ratio(logprobs, rollout_logprobs), torch.ones_like(rollout_logprobs)


def weighted_reinforce(logprobs: Tensor, rollout_logprobs: Tensor, advantages: Tensor, *, cap: float = 2.0) -> Tensor:
    """REINFORCE with the detached, truncated weight pi / rollout, [N]; no clip and no further weight."""
    weight = truncated((logprobs - rollout_logprobs).detach(), cap=cap)
    return reinforce(logprobs, weight * advantages)


def truncated(log_weights: Tensor, *, cap: float = 2.0) -> Tensor:
    """min(w, cap): truncated importance sampling (TIS; Ionides 2008), by token [N] or row [count]."""
    return log_weights.clamp(-LIMIT, math.log(cap)).exp()


def clamped(log_weights: Tensor, *, low: float, high: float) -> Tensor:
    """w held in [low, high]. Raising small weights biases upwards: prefer ``truncated``."""
    return log_weights.clamp(math.log(low), math.log(high)).exp()


def banded(log_weights: Tensor, *, low: float = 0.0, high: float) -> Tensor:
    """w inside [low, high], 0 outside: IcePop (arXiv 2510.18855) with 0.5 and 5, MIS with low 0."""
    return torch.where(inside(log_weights, low=low, high=high), _weight(log_weights), torch.zeros_like(log_weights))


def inside(log_weights: Tensor, *, low: float = 0.0, high: float = math.inf) -> Tensor:
    """Where w itself (never 1 / w) lies in [low, high], bool, by token or row."""
    weights = log_weights.exp()
    return (weights >= low) & (weights <= high)


def _weight(log_weights: Tensor) -> Tensor:
    return log_weights.clamp(-LIMIT, LIMIT).exp()


def sequence_log_weights(log_weights: Tensor, samples: Tensor, count: int) -> Tensor:
    """Log of the product of each row's weights, [count]: the row's true importance weight."""
    return row_sum(log_weights, samples, count)


def geometric_log_weights(log_weights: Tensor, samples: Tensor, count: int) -> Tensor:
    """Log of the geometric mean of each row's weights, [count]: not a weight, use it only to reject with ``inside``."""
    return row_mean(log_weights, samples, count)
