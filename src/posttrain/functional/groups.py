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


def leave_one_out_std(rewards: Tensor, *, ddof: int = 1) -> Tensor:
    """Standard deviation of the others' rewards, [G]; exactly 0 where they are equal. NeMo-RL's scale, kept to compare.

    Where the others agree there is no scale: a lone outlier keeps its centred reward while everybody else is scaled.
    """
    count = rewards.numel()
    others = torch.stack([torch.cat([rewards[:place], rewards[place + 1 :]]) for place in range(count)])
    if others.shape[1] <= ddof:
        return torch.zeros_like(rewards)
    equal = others.amax(1) == others.amin(1)
    return torch.where(equal, torch.zeros_like(rewards), others.std(dim=1, correction=ddof))


def standardised(rewards: Tensor, *, epsilon: float = 1e-6, ddof: int = 1, tolerance: float = 0.0) -> Tensor:
    """Centred reward over (group standard deviation + epsilon), [G] (GRPO)."""
    if degenerate(rewards, tolerance):
        return torch.zeros_like(rewards)
    return (rewards - rewards.mean()) / (rewards.std(correction=ddof) + epsilon)


def length_weighted(rewards: Tensor, lengths: Tensor, *, tolerance: float = 0.0) -> Tensor:
    """Reward minus the mean weighted by sampled tokens, [G]: OPO, arXiv 2505.23585.

    The variance-optimal baseline if the squared gradient of a row grows with its length. Plain mean if no row has
    tokens.
    """
    if degenerate(rewards, tolerance):
        return torch.zeros_like(rewards)
    weights = lengths.to(rewards.dtype)
    if not bool(weights.any()):
        return centred(rewards)
    return rewards - (weights * rewards).sum() / weights.sum()


def mean_scaled(rewards: Tensor, *, epsilon: float = 1e-6, tolerance: float = 0.0) -> Tensor:
    """Centred reward over (group mean + epsilon), [G]: MaxRL, arXiv 2602.02710. Rewards must not be negative.

    With rewards 0 and 1 this is the gradient of log p, p the pass rate, instead of p's. Raises ValueError for a
    negative reward, whose sign the division would turn around.
    """
    if bool((rewards < 0).any()):
        raise ValueError(f"mean-scaled advantages need rewards of at least 0, got {float(rewards.min())}")
    if degenerate(rewards, tolerance):
        return torch.zeros_like(rewards)
    return (rewards - rewards.mean()) / (rewards.mean() + epsilon)


def best_over_second(
    rewards: Tensor, *, scale: bool = True, epsilon: float = 1e-6, ddof: int = 1, tolerance: float = 0.0
) -> Tensor:
    """The best rollout gets its lead over the second, the others 0, [G]: pass@k training, arXiv 2503.19595.

    With ``scale`` over (group standard deviation + epsilon). A tie at the top gives zeros: with rewards 0 and 1 it
    moves only when exactly one rollout is right.
    """
    result = torch.zeros_like(rewards)
    if degenerate(rewards, tolerance):
        return result
    top = rewards.topk(2)
    lead = top.values[0] - top.values[1]
    result[top.indices[0]] = lead / (rewards.std(correction=ddof) + epsilon) if scale else lead
    return result


def parts_standardised(
    parts: Tensor, weights: Tensor, *, epsilon: float = 1e-6, ddof: int = 1, tolerance: float = 0.0
) -> Tensor:
    """Standardise each reward part [K, G] in its group, then sum by ``weights`` [K]; [G]. GDPO, arXiv 2601.05242.

    Summing first would let the part of largest variance swallow the others. The paper then whitens over the whole
    batch: see ``batch_standardised``.
    """
    rows = [standardised(part, epsilon=epsilon, ddof=ddof, tolerance=tolerance) for part in parts]
    return (weights.to(parts.dtype)[:, None] * torch.stack(rows)).sum(0)


def batch_standardised(values: Tensor, *, epsilon: float = 1e-6, ddof: int = 1) -> Tensor:
    """Standardise one number per rollout, [S], over all groups of the batch (GDPO's second step)."""
    return standardised(values, epsilon=epsilon, ddof=ddof)
