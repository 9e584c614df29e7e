"""Pair losses against a frozen reference: DPO and what followed it, one number per pair, [P].

With g = (log pi - log ref)(chosen) - (log pi - log ref)(rejected), h = beta g, s = log sigmoid:

dpo               -s(h)                                                        arXiv 2305.18290 eq. 7
cdpo              -(1 - e) s(h) - e s(-h)                                      Mitchell's note on noisy labels
robust            (-(1 - e) s(h) + e s(-h)) / (1 - 2 e)                        rDPO, arXiv 2403.00409
hinge             max(0, 1 - h)                                                SLiC, arXiv 2305.10425; RSO 2309.06657
ipo_sum           (g - 1 / (2 beta))^2                                         arXiv 2310.12036 eq. 17
ipo_average       the same with log ratios per token                           TRL's reading, confirmed by its authors
dpo_normalised    -s(beta g per token)                                         length-normalised DPO, arXiv 2411.15124
dpo_positive      -s(beta (g - l max(0, log ref(chosen) - log pi(chosen))))    DPOP (Smaug), arXiv 2402.13228
f_dpo             -s(beta (f'(ratio chosen) - f'(ratio rejected)))             arXiv 2309.16240

With rewards r = beta log ratio: nca (2402.05369), bco_pair (2404.04656), sppo (2405.00675), apo_zero, apo_down
(2408.06266 eq. 7 and 8), exo (2402.00856 eq. 16).
Equation numbers stand where they could be checked. Nothing here computes a sigmoid and then its logarithm.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.functional.preference import Pairs

Divergence = Literal["reverse_kl", "forward_kl", "jensen_shannon", "alpha"]
Normaliser = Literal["sequence_sum", "sequence_mean", "batch_token_mean"]
EXPONENT_LIMIT = 60.0
"""Sequence log ratios are held above minus this before exp(-x), so that float32 stays finite."""


def dpo(pairs: Pairs, *, beta: float | Tensor = 0.1) -> Tensor:
    """-log sigmoid(beta g), [P]; ln 2 where policy equals reference. DPO, arXiv 2305.18290 eq. 7."""
    return -logsigmoid(beta * pairs.gap)


def cdpo(pairs: Pairs, *, beta: float = 0.1, flip: float = 0.1) -> Tensor:
    """Cross-entropy with soft labels for a share ``flip`` of wrong labels, [P]; least at h = logit(1 - flip).

    Conservative DPO: Mitchell, "A note on DPO with noisy preferences". Raises ValueError unless 0 <= flip < 1/2.
    """
    margin = beta * pairs.gap
    _check_flip(flip)
    return -(1 - flip) * logsigmoid(margin) - flip * logsigmoid(-margin)


def robust(pairs: Pairs, *, beta: float = 0.1, flip: float = 0.1) -> Tensor:
    """Unbiased estimate of the clean DPO loss under a share ``flip`` of wrong labels, [P]; may be negative.

    rDPO, arXiv 2403.00409. Raises ValueError unless 0 <= flip < 1/2.
    """
    margin = beta * pairs.gap
    _check_flip(flip)
    return (-(1 - flip) * logsigmoid(margin) + flip * logsigmoid(-margin)) / (1 - 2 * flip)


def hinge(pairs: Pairs, *, beta: float = 0.1) -> Tensor:
    """max(0, 1 - beta g), [P]. SLiC-HF (arXiv 2305.10425) on DPO's margin: RSO, arXiv 2309.06657."""
    return torch.relu(1 - beta * pairs.gap)


def ipo_sum(pairs: Pairs, *, tau: float = 0.1) -> Tensor:
    """(g - 1 / (2 tau))^2 with g of summed log-probabilities, [P]. IPO, arXiv 2310.12036 eq. 17 as printed."""
    return (pairs.gap - 1 / (2 * tau)) ** 2


def ipo_average(pairs: Pairs, *, tau: float = 0.1) -> Tensor:
    """(g per token - 1 / (2 tau))^2, [P]: IPO with length-averaged log ratios, as TRL and its authors read it."""
    return (pairs.average_gap - 1 / (2 * tau)) ** 2


def dpo_normalised(pairs: Pairs, *, beta: float = 2.0) -> Tensor:
    """-log sigmoid(beta g per token), [P]. Length-normalised DPO, Tulu 3, arXiv 2411.15124."""
    return -logsigmoid(beta * pairs.average_gap)


def dpo_positive(pairs: Pairs, *, beta: float = 0.1, penalty: float = 5.0) -> Tensor:
    """DPO whose margin shrinks when the chosen answer falls below the reference, [P].

    DPOP (Smaug), arXiv 2402.13228, lambda = ``penalty``.
    """
    fall = torch.relu(-pairs.chosen_log_ratio)
    return -logsigmoid(beta * (pairs.gap - penalty * fall))


def f_dpo(pairs: Pairs, *, divergence: Divergence, beta: float = 0.1, alpha: float = 0.5) -> Tensor:
    """DPO whose constraint is another f-divergence than reverse KL, [P]. f-DPO, arXiv 2309.16240.

    The margin is beta (f'(u_chosen) - f'(u_rejected)), u = pi / ref; ``alpha`` in (0, 1) is used by "alpha" only
    (towards 0: reverse KL, 1: forward KL). Raises ValueError for other names and values.
    """
    chosen = divergence_slope(pairs.chosen_log_ratio, divergence, alpha=alpha)
    rejected = divergence_slope(pairs.rejected_log_ratio, divergence, alpha=alpha)
    return -logsigmoid(beta * (chosen - rejected))


def divergence_slope(log_ratio: Tensor, divergence: Divergence, *, alpha: float = 0.5) -> Tensor:
    """f'(u) at u = exp(log_ratio) up to a constant, same shape (arXiv 2309.16240)."""
    if divergence == "reverse_kl":
        return log_ratio
    if divergence == "jensen_shannon":
        return logsigmoid(log_ratio)
    held = log_ratio.clamp(min=-EXPONENT_LIMIT)
    if divergence == "forward_kl":
        return -torch.exp(-held)
    if divergence != "alpha" or not 0 < alpha < 1:
        raise ValueError(f"no slope for divergence {divergence!r} with alpha {alpha}; alpha lies between 0 and 1")
    return -torch.expm1(-alpha * held) / alpha


def nca(pairs: Pairs, *, beta: float = 0.1) -> Tensor:
    """-s(r_c) - s(-r_c) / 2 - s(-r_r) / 2, [P]: raises the chosen answer itself. NCA, arXiv 2402.05369."""
    chosen, rejected = beta * pairs.chosen_log_ratio, beta * pairs.rejected_log_ratio
    return -logsigmoid(chosen) - 0.5 * logsigmoid(-chosen) - 0.5 * logsigmoid(-rejected)


def bco_pair(pairs: Pairs, *, beta: float = 0.1, shift: float | Tensor = 0.0) -> Tensor:
    """-s(r_c - shift) - s(-(r_r - shift)), [P]: a classifier of good and bad. BCO, arXiv 2404.04656.

    ``shift`` is the running mean of rewards (see preference_unpaired.RewardShift), detached.
    """
    chosen, rejected = beta * pairs.chosen_log_ratio, beta * pairs.rejected_log_ratio
    return -logsigmoid(chosen - shift) - logsigmoid(shift - rejected)


def sppo(pairs: Pairs, *, beta: float = 0.1, win_rate: float | Tensor = 1.0) -> Tensor:
    """Squared distance of each log ratio to (win rate - 1/2) / beta, both answers summed, [P].

    SPPO, arXiv 2405.00675; ``win_rate`` is the chosen answer's against the policy (1: the hard version),
    the rejected one's is its complement.
    """
    target = (win_rate - 0.5) / beta
    return (pairs.chosen_log_ratio - target) ** 2 + (pairs.rejected_log_ratio + target) ** 2


def apo_zero(pairs: Pairs, *, beta: float = 0.1) -> Tensor:
    """1 - sigmoid(r_c) + sigmoid(r_r), [P]: chosen up, rejected down. APO-zero, arXiv 2408.06266 eq. 7."""
    return torch.sigmoid(-beta * pairs.chosen_log_ratio) + torch.sigmoid(beta * pairs.rejected_log_ratio)


def apo_down(pairs: Pairs, *, beta: float = 0.1) -> Tensor:
    """sigmoid(r_c) + 1 - sigmoid(r_c - r_r), [P]: both down, rejected faster. APO-down, arXiv 2408.06266 eq. 8."""
    return torch.sigmoid(beta * pairs.chosen_log_ratio) + torch.sigmoid(-beta * pairs.gap)


def exo(pairs: Pairs, *, beta: float = 0.1, smoothing: float = 1e-3) -> Tensor:
    """Reverse KL from (sigmoid(h), sigmoid(-h)) to the smoothed label, [P]. EXO, arXiv 2402.00856 eq. 16.

    Raises ValueError unless 0 < smoothing < 1/2: with 0 the loss is infinite.
    """
    if not 0 < smoothing < 0.5:
        raise ValueError(f"smoothing must lie between 0 and 1/2, got {smoothing}")
    right, wrong = logsigmoid(beta * pairs.gap), logsigmoid(-beta * pairs.gap)
    return right.exp() * (right - math.log1p(-smoothing)) + wrong.exp() * (wrong - math.log(smoothing))


def chosen_nll(
    pairs: Pairs, normaliser: Normaliser, *, batch_pairs: int | None = None, batch_tokens: int | None = None
) -> Tensor:
    """Negative log-likelihood of the chosen answers, [P], to be averaged over pairs like every pair loss.

    Added with a coefficient to dpo it keeps the chosen answer from falling. "RPO" means three normalisers:
    sequence_sum (regularised PO, arXiv 2405.16436), sequence_mean (iterative reasoning PO, arXiv 2404.19733
    eq. 1) and batch_token_mean (one mean over all chosen tokens; needs ``batch_pairs`` and ``batch_tokens`` of the
    whole step, so that micro-batches add up). Raises ValueError if those are missing or the name is unknown.
    """
    if normaliser == "sequence_sum":
        return -pairs.chosen
    if normaliser == "sequence_mean":
        return -pairs.chosen_average
    if normaliser != "batch_token_mean":
        raise ValueError(f"unknown normaliser {normaliser!r}; sequence_sum, sequence_mean or batch_token_mean")
    if not batch_pairs or not batch_tokens:
        raise ValueError("batch_token_mean needs the numbers of pairs and of chosen tokens of the whole step")
    return -pairs.chosen * (batch_pairs / batch_tokens)


def _check_flip(flip: float) -> None:
    if not 0 <= flip < 0.5:
        raise ValueError(f"the share of flipped labels must be at least 0 and below 1/2, got {flip}")
