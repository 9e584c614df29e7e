"""Advantages that use more than the outcome: process rewards of steps, turn rewards, process bonuses.

Each function takes one group. Positions are those of sampled tokens; a reward for a step that ends on a tool token
belongs to the last sampled token before it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.functional.groups import degenerate, standardised
from posttrain.functional.recursion import backward_sum


def process_supervision(
    step_rewards: Tensor,
    step_ends: Tensor,
    samples: Tensor,
    count: int,
    *,
    epsilon: float = 1e-6,
    ddof: int = 1,
) -> Tensor:
    """GRPO with process supervision (DeepSeekMath, arXiv 2402.03300, section 4.1.3), [N] for one group.

    ``step_rewards`` [K] of all steps of all rollouts are standardised together; a token's advantage is the sum over
    the steps that end at or after it. ``step_ends`` int64 [K]: flat index in [N] of each step's last token.
    A rollout with more steps sums more terms, so a constant bonus per step is not neutral.
    """
    normal = standardised(step_rewards, epsilon=epsilon, ddof=ddof)
    placed = step_rewards.new_zeros(len(samples)).index_add(0, step_ends, normal)
    return backward_sum(placed, 1.0, samples, count)


def outcome_and_turn(
    outcomes: Tensor, turn_rewards: Tensor, called: Tensor, *, coefficient: float = 1.0, epsilon: float = 1e-4
) -> tuple[Tensor, Tensor]:
    """MT-GRPO (arXiv 2505.11821): advantages before and after the first tool result, [G] each.

    Outcome and turn rewards, [G], are standardised apart; tokens before the result get A_outcome + coefficient x
    A_turn, later ones A_outcome. A rollout that called no tool (``called`` bool [G] false) gets the standardised sum.
    """
    outcome, turn = standardised(outcomes, epsilon=epsilon), standardised(turn_rewards, epsilon=epsilon)
    both = standardised(outcomes + turn_rewards, epsilon=epsilon)
    return torch.where(called, outcome + coefficient * turn, both), torch.where(called, outcome, both)


def outcome_with_bonus(
    rewards: Tensor, bonuses: Tensor, samples: Tensor, *, epsilon: float = 1e-6, ddof: int = 1
) -> Tensor:
    """FoldGRPO (arXiv 2510.11967): (clip(R + bonus, 0, 1) - mean R) / (std R + epsilon), [N].

    ``rewards`` [G] in [0, 1]; ``bonuses`` float [N]. A bonus on a success and a penalty on a failure vanish in the
    clip. A group of equal outcomes gives 0: its standard deviation would blow any bonus up.
    """
    if degenerate(rewards):
        return torch.zeros_like(bonuses)
    scale = rewards.std(correction=ddof) + epsilon
    return ((rewards[samples] + bonuses).clamp(0.0, 1.0) - rewards.mean()) / scale
