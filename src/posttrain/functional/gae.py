"""Generalised advantage estimation over sampled tokens (arXiv 1506.02438, eq. 16), single and multi turn.

    delta_t = r_t + gamma_t V_next - V_t           A_t = delta_t + gamma_t lambda_t A_next

V_t is the value of the state before token t; next is the row's following sampled token, tool output skipped. Inside
a turn (gamma, lambda) apply, from a turn's last token to the next turn (turn_gamma, turn_lambda):

plain / skip-observation   turn coefficients equal to the token ones
turn-truncated             turn_lambda = 0: only V of the next turn's first token crosses

After a row's last token, A_next = 0 and V_next = 0 if the episode terminated, its bootstrap value if a limit cut it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.functional.masked import row_sum
from posttrain.functional.recursion import backward_sum, first_of_row, following, last_of_row, turn_spans


def advantages(
    rewards: Tensor,
    values: Tensor,
    samples: Tensor,
    count: int,
    *,
    gamma: float = 1.0,
    lambda_: float | Tensor = 0.95,
    turns: Tensor | None = None,
    turn_gamma: float | None = None,
    turn_lambda: float | None = None,
    bootstrap: Tensor | None = None,
) -> Tensor:
    """Return A [N]; A + values are the critic's targets.

    ``rewards``, ``values`` [N]; ``lambda_`` a number or one per row [count]; ``turns`` int64 [N] is needed when turn
    coefficients are given; ``bootstrap`` [count]: value after the last token, 0 where the episode terminated.
    Raises ValueError if turn coefficients come without turns.
    """
    if turns is None and (turn_gamma is not None or turn_lambda is not None):
        raise ValueError("turn_gamma and turn_lambda need turns, the turn index of each token")
    rewards, values = rewards.detach(), values.detach()
    token_lambda = torch.as_tensor(lambda_, dtype=values.dtype, device=values.device)
    lambdas = token_lambda[samples] if token_lambda.ndim else token_lambda.expand_as(values)
    gammas = torch.full_like(values, gamma)
    if turns is not None:
        crossing = last_of_row(turns)
        gammas = gammas if turn_gamma is None else gammas.masked_fill(crossing, turn_gamma)
        lambdas = lambdas if turn_lambda is None else lambdas.masked_fill(crossing, turn_lambda)
    # the factor after a row's last token is gamma: a turn's coefficient belongs to the way into another turn
    gammas = gammas.masked_fill(last_of_row(samples), gamma)
    later = following(values, samples, 0.0 if bootstrap is None else bootstrap)
    delta = rewards + gammas * later - values
    return backward_sum(delta, gammas * lambdas, samples, count)


def turn_level(
    rewards: Tensor,
    values: Tensor,
    samples: Tensor,
    turns: Tensor,
    count: int,
    *,
    gamma: float = 0.99,
    lambda_: float = 0.9,
    bootstrap: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """A turn is the action (Turn-PPO, arXiv 2512.17008): (A [N], targets [N], trained bool [N]).

    V of a turn is the value at its first token; its reward is the sum inside; each of its tokens gets its A. The
    critic trains only where ``trained`` is true, on ``targets`` = A + V.
    """
    spans, rows = turn_spans(samples, turns)
    starts = first_of_row(spans)
    turn_rewards, turn_values = row_sum(rewards, spans, len(rows)), values.detach()[starts]
    per_turn = advantages(turn_rewards, turn_values, rows, count, gamma=gamma, lambda_=lambda_, bootstrap=bootstrap)
    return per_turn[spans], (per_turn + turn_values)[spans], starts


def bi_level(
    rewards: Tensor,
    values: Tensor,
    samples: Tensor,
    turns: Tensor,
    count: int,
    *,
    gamma: float = 1.0,
    lambda_: float = 0.95,
    turn_gamma: float = 0.95,
    turn_lambda: float | None = None,
    bootstrap: Tensor | None = None,
) -> Tensor:
    """Return A [N] of bi-level GAE (VAGEN, arXiv 2510.16907; RAGEN): over turn ends, then inside each turn.

    The upper level runs over the last token of each turn with its own reward; the lower level replaces that reward
    by the turn's return A + V and starts anew in every turn. A turn's reward must sit on its last token.
    """
    spans, rows = turn_spans(samples, turns)
    ends = last_of_row(spans)
    upper_lambda = lambda_ if turn_lambda is None else turn_lambda
    ending = values.detach()[ends]
    upper = advantages(rewards[ends], ending, rows, count, gamma=turn_gamma, lambda_=upper_lambda, bootstrap=bootstrap)
    inner = rewards.detach().clone()
    inner[ends] = upper + ending
    return advantages(inner, values, spans, len(rows), gamma=gamma, lambda_=lambda_)


def length_adaptive_lambda(lengths: Tensor, *, alpha: float = 0.05) -> Tensor:
    """1 - 1 / (alpha n) by row length, [count], kept in [0, 1] (VAPO, arXiv 2504.05118, length-adaptive GAE).

    The formula is negative for rows shorter than 1 / alpha, where the oscillating sum would be worse than TD.
    """
    return (1 - 1 / (alpha * lengths.clamp(min=1).to(torch.float64))).clamp(0.0, 1.0)
