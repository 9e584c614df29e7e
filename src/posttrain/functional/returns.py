"""Token rewards and returns-to-go over sampled tokens.

A rollout's reward sits on its last sampled token, never on a tool token or behind the end. A KL penalty inside the
reward is -beta k1 per token (Ziegler et al., arXiv 1909.08593, eq. 2; REINFORCE++, arXiv 2501.03262): with
the return-to-go it is the unbiased gradient of the sequence KL, which no KL inside the loss contains.
"""

from __future__ import annotations

from torch import Tensor

from posttrain.functional.masked import row_sum
from posttrain.functional.recursion import backward_sum, last_of_row, turn_spans


def token_rewards(rewards: Tensor, samples: Tensor) -> Tensor:
    """Put each row's reward, [count], on its last sampled token; return [N]. Rows without tokens lose theirs."""
    result = rewards[samples].clone()
    result[~last_of_row(samples)] = 0.0
    return result


def with_kl(rewards: Tensor, old_logprobs: Tensor, ref_logprobs: Tensor, coefficient: float) -> Tensor:
    """Token rewards minus coefficient x k1, all [N], detached: a penalty in the reward carries no gradient.

    Only k1 is offered: k3 in the reward biases the gradient (arXiv 2512.21852).
    """
    return (rewards - coefficient * (old_logprobs - ref_logprobs)).detach()


def returns_to_go(rewards: Tensor, samples: Tensor, count: int, *, discount: float = 1.0) -> Tensor:
    """Discounted sum of this and the later token rewards of the row, [N]."""
    return backward_sum(rewards, discount, samples, count)


def turn_returns(rewards: Tensor, samples: Tensor, turns: Tensor, *, discount: float = 1.0) -> Tensor:
    """Each token's turn return, [N]: turn rewards summed, discounted once per turn, the same inside a turn."""
    spans, rows = turn_spans(samples, turns)
    per_turn = row_sum(rewards, spans, len(rows))
    return backward_sum(per_turn, discount, rows, int(rows.max()) + 1 if len(rows) else 0)[spans]


def against_greedy(rewards: Tensor, samples: Tensor, count: int, greedy_rewards: Tensor) -> Tensor:
    """ReMax (arXiv 2310.10505, algorithm 1): undiscounted return-to-go minus the greedy answer's reward, [N].

    ``rewards`` [N] by token; ``greedy_rewards`` [count]: what temperature 0 earned on each row's prompt with the
    same version of the weights.
    """
    return returns_to_go(rewards, samples, count) - greedy_rewards[samples]
