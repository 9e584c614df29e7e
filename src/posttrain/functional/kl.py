"""Estimators of KL(policy || reference) on tokens the policy sampled, x = logprobs - ref_logprobs.

k1 = x, k2 = x^2 / 2, k3 = exp(-x) - 1 + x (http://joschu.net/blog/kl-approx.html). As a loss, k1 has expected
gradient 0, k2 the gradient of KL(policy || reference), k3 that of KL(reference || policy) (GRPO's choice);
``k3_k2`` has k3's value and k2's gradient, token by token.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Estimator = Literal["k1", "k2", "k3", "k3_k2"]
LIMIT = 20.0


def k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """x, [N]; unbiased, may be negative."""
    return logprobs - ref_logprobs


def k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """x^2 / 2, [N]."""
    return 0.5 * (logprobs - ref_logprobs) ** 2


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """exp(-x) - 1 + x, [N]; never negative; x below -20 counts as -20, with no gradient.

    Clamping x inside the exponential alone would leave the gradient of ``+ x``, which has the wrong sign there.
    """
    difference = (logprobs - ref_logprobs).clamp(min=-LIMIT)
    return torch.expm1(-difference) + difference


def k3_k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """k3 in value, k2 in gradient, [N]."""
    squared = k2(logprobs, ref_logprobs)
    return k3(logprobs, ref_logprobs).detach() + (squared - squared.detach())


def k3_corrected(logprobs: Tensor, ref_logprobs: Tensor, behaviour_logprobs: Tensor) -> Tensor:
    """rho k3 with rho = pi / behaviour differentiated, [N] (DeepSeek-V3.2, arXiv 2512.02556).

    Expected gradient over tokens that the behaviour policy sampled: that of KL(policy || reference). With rho
    detached it would be the opposite KL's, so that form is not offered.
    """
    rho = (logprobs - behaviour_logprobs).clamp(-LIMIT, LIMIT).exp()
    return rho * k3(logprobs, ref_logprobs)


ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3, "k3_k2": k3_k2}
