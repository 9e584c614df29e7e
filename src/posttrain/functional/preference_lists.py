"""Losses over lists of answers to one prompt: Plackett-Luce, softmax against several negatives, all pairs.

Answers lie flat, [R], with ``groups`` int64 [R] naming each one's prompt, so lists may differ in length. Scores are
DPO's implicit rewards (beta x log ratio) or a reward model's. ``ranks`` int64 [R] order a list, 0 best; equal ranks
are ties. Softmax and all-pairs losses push losers down without ordering them; Plackett-Luce learns the whole order.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.functional.masked import row_sum


def plackett_luce(scores: Tensor, ranks: Tensor, groups: Tensor, count: int) -> Tensor:
    """Sum over answers of logsumexp(itself and all strictly worse answers) - its score, [count].

    The negative log-likelihood of a full order: DPO's appendix A.3 (arXiv 2305.18290 eq. 18). K equal scores give
    ln K!; two answers give DPO. Tied answers are not compared with each other, and the last tier adds exactly 0, so
    one best answer with tied losers is `softmax_negatives`.
    """
    same = groups[:, None] == groups[None, :]
    worse = same & (ranks[None, :] > ranks[:, None])
    rivals = worse | torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    spread = torch.where(rivals, scores[None, :], float("-inf"))
    return row_sum(torch.logsumexp(spread, dim=1) - scores, groups, count)


def softmax_negatives(scores: Tensor, winners: Tensor, groups: Tensor, count: int) -> Tensor:
    """-log of the winner's share in the softmax of its list, [count]; ``winners`` bool [R].

    S-DPO, arXiv 2406.09215, -log sigmoid(-log sum_j exp(r_j - r_winner)), by logsumexp, which cannot overflow;
    the same as InfoNCE. One negative gives DPO. Several winners of a list each stand against all its losers.
    """
    return plackett_luce(scores, (~winners).long(), groups, count)


def all_pairs(scores: Tensor, ranks: Tensor, groups: Tensor, count: int) -> Tensor:
    """Mean of -log sigmoid(better - worse) over all ordered pairs of each list, [count]; 0 without any.

    InstructGPT's reward loss, arXiv 2203.02155 eq. 1: K answers are one example of weight 1, not C(K, 2) examples.
    """
    better, worse = ordered_pairs(ranks, groups)
    losses = -logsigmoid(scores[better] - scores[worse])
    pairs = torch.bincount(groups[better], minlength=count).clamp(min=1)
    return row_sum(losses, groups[better], count) / pairs.to(losses.dtype)


def ordered_pairs(ranks: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Indices (better, worse), int64 [Q] each, of all pairs of one list whose ranks differ."""
    same = groups[:, None] == groups[None, :]
    better, worse = torch.nonzero(same & (ranks[:, None] < ranks[None, :]), as_tuple=True)
    return better, worse


def comparing(ranks: Tensor, groups: Tensor, count: int) -> Tensor:
    """Which lists hold any comparison, bool [count]: the lists that count in a mean over lists."""
    better, _ = ordered_pairs(ranks, groups)
    return torch.bincount(groups[better], minlength=count) > 0
