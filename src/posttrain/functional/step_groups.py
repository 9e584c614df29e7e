"""GiGPO (arXiv 2505.10978): besides whole trajectories, compare the steps that start from the same state.

    A(i, t) = A_episode(i) + omega A_step(i, t)

A_episode compares the trajectories of one task, each counted once, however many steps it has. A_step compares the
discounted returns of all steps of the task that share an anchor state, also of one trajectory that came back to it;
a state seen once gives 0. A state label must tell apart everything observable.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.functional.groups import centred, standardised
from posttrain.functional.recursion import backward_sum


def gigpo(
    episode_rewards: Tensor,
    step_rewards: Tensor,
    trajectories: Tensor,
    states: Tensor,
    *,
    omega: float = 1.0,
    discount: float = 0.95,
    scale: bool = False,
    epsilon: float = 1e-6,
) -> Tensor:
    """Joint advantages [K] of the K steps of one task's trajectories.

    ``episode_rewards`` [G]; ``step_rewards`` [K]; ``trajectories`` int64 [K] ascending; ``states`` int64 [K] labels.
    ``scale`` divides both levels by their group's standard deviation.
    """
    episode = _compare(episode_rewards, scale, epsilon)
    returns = backward_sum(step_rewards, discount, trajectories, len(episode_rewards))
    return episode[trajectories] + omega * step_advantages(returns, states, scale=scale, epsilon=epsilon)


def step_advantages(returns: Tensor, states: Tensor, *, scale: bool = False, epsilon: float = 1e-6) -> Tensor:
    """Compare step ``returns`` [K] among equal ``states`` int64 [K]; [K]."""
    result = torch.zeros_like(returns)
    for state in torch.unique(states):
        places = torch.nonzero(states == state)[:, 0]
        result[places] = _compare(returns[places], scale, epsilon)
    return result


def _compare(values: Tensor, scale: bool, epsilon: float) -> Tensor:
    return standardised(values, epsilon=epsilon) if scale else centred(values)
