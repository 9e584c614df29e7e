"""Critic-free advantages from the rewards of a group: centre, then scale.

A group whose rewards are all equal (max - min at most ``tolerance``) gets exactly zero, whatever the rounding of
its standard deviation; so does a group of one, which has nothing to compare itself with.
GRPO: arXiv 2402.03300 eq. 3; Dr.GRPO: arXiv 2503.20783; RLOO: arXiv 2402.14740.
"""

from __future__ import annotations

import torch
from torch import Tensor


def degenerate(rewards: Tensor, tolerance: float = 0.0) -> bool:
    """True if ``rewards`` [G] carry no comparison: fewer than two, or all within ``tolerance``."""
    return rewards.numel() < 2 or bool(rewards.max() - rewards.min() <= tolerance)


def centred(rewards: Tensor, *, tolerance: float = 0.0) -> Tensor:
    """Reward minus group mean, [G] (Dr.GRPO)."""
    if degenerate(rewards, tolerance):
        return torch.zeros_like(rewards)
    return rewards - rewards.mean()


def leave_one_out(rewards: Tensor, *, tolerance: float = 0.0) -> Tensor:
    """Reward minus the mean of the others, [G] (RLOO): G / (G - 1) times the centred reward."""
    return centred(rewards, tolerance=tolerance) * (rewards.numel() / max(rewards.numel() - 1, 1))


def standardised(rewards: Tensor, *, epsilon: float = 1e-6, ddof: int = 1, tolerance: float = 0.0) -> Tensor:
    """Centred reward over (group standard deviation + epsilon), [G] (GRPO)."""
    if degenerate(rewards, tolerance):
        return torch.zeros_like(rewards)
    return (rewards - rewards.mean()) / (rewards.std(correction=ddof) + epsilon)
