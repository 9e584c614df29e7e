"""Pair losses without a reference model: SimPO, CPO and ORPO, one number per pair, [P].

The policy's own log-probability stands where DPO has a ratio to the reference; SimPO and ORPO average it over tokens.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.functional.preference import Pairs


def simpo(pairs: Pairs, *, beta: float = 2.0, margin_ratio: float = 0.5) -> Tensor:
    """-log sigmoid(beta (mean logprob chosen - mean logprob rejected) - gamma), gamma = beta x margin_ratio, [P].

    SimPO, arXiv 2405.14734 eq. 6; the margin is given as gamma / beta, the unit of its section 4 and code.
    """
    return -logsigmoid(beta * (pairs.chosen_average - pairs.rejected_average - margin_ratio))


def cpo(pairs: Pairs, *, beta: float = 0.1) -> Tensor:
    """-log sigmoid(beta (log pi(chosen) - log pi(rejected))), [P]: CPO's preference term, arXiv 2401.08417.

    The paper adds the NLL of the chosen answer: preference_pairs.chosen_nll.
    """
    return -logsigmoid(beta * (pairs.chosen - pairs.rejected))


def log_odds(pairs: Pairs) -> Tensor:
    """log of odds(chosen) / odds(rejected), odds = p / (1 - p) with p the geometric mean token probability, [P].

    ORPO, arXiv 2403.07691 eq. 4 and 5.
    """
    chosen, rejected = pairs.chosen_average, pairs.rejected_average
    return (chosen - log1mexp(chosen)) - (rejected - log1mexp(rejected))


def odds_ratio(pairs: Pairs) -> Tensor:
    """-log sigmoid(log odds ratio), [P]: ORPO's preference term, arXiv 2403.07691 eq. 7."""
    return -logsigmoid(log_odds(pairs))


def orpo(pairs: Pairs, *, weight: float = 0.1) -> Tensor:
    """Mean NLL of the chosen answer plus ``weight`` times the odds ratio term, [P]. ORPO, arXiv 2403.07691 eq. 6.

    The NLL covers the answer only; TRL's covers the prompt as well.
    """
    return -pairs.chosen_average + weight * odds_ratio(pairs)


def log1mexp(values: Tensor) -> Tensor:
    """log(1 - exp(x)) for x < 0, same shape, exact near 0 and far below (Maechler 2012, eq. 7).

    x is held below minus the dtype's epsilon, where the result would be minus infinity.
    """
    held = values.clamp(max=-torch.finfo(values.dtype).eps)
    near = held > -math.log(2)
    # Each branch sees only arguments it is good at; the other's would put NaN into the gradient.
    close = torch.log(-torch.expm1(torch.where(near, held, -1.0)))
    far = torch.log1p(-torch.exp(torch.where(near, -1.0, held)))
    return torch.where(near, close, far)
