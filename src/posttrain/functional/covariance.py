"""Clip-Cov and KL-Cov (arXiv 2505.22617): hold back the few tokens whose covariance drives entropy down.

    cov_t = (A_t - mean A) (log p_t - mean log p)

Means and selection are over ALL trained tokens of the optimizer step: call these once, before the first backward,
with log-probabilities without gradient, and hand each micro-batch its part of the selection.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.functional.ratios import token_ratio


def covariances(advantages: Tensor, logprobs: Tensor) -> Tensor:
    """Each token's contribution to the covariance of advantage and log-probability, [N], detached."""
    a, x = advantages.detach(), logprobs.detach()
    return (a - a.mean()) * (x - x.mean())


def kl_cov_selection(covariance: Tensor, *, share: float = 2e-4) -> Tensor:
    """The top ``share`` of tokens by covariance, at least one, bool [N]; of equal ones the earlier."""
    chosen = torch.zeros(len(covariance), dtype=torch.bool, device=covariance.device)
    if len(covariance):
        number = max(1, int(len(covariance) * share))
        chosen[torch.argsort(covariance, descending=True, stable=True)[:number]] = True
    return chosen


def clip_cov_selection(
    covariance: Tensor,
    *,
    generator: torch.Generator,
    share: float = 2e-4,
    low: float = 1.0,
    high: float = 5.0,
    eligible: Tensor | None = None,
) -> Tensor:
    """A random ``share`` of all tokens, at least one, among those with covariance between the bounds, bool [N].

    ``eligible`` bool [N] excludes others, for example tokens that the ratio clip already holds.
    """
    chosen = torch.zeros(len(covariance), dtype=torch.bool, device=covariance.device)
    among = (covariance > low) & (covariance < high)
    places = torch.nonzero(among if eligible is None else among & eligible)[:, 0]
    number = max(1, int(len(covariance) * share))
    chosen[places[torch.randperm(len(places), generator=generator)[:number]]] = True
    return chosen


def kl_cov(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, selected: Tensor, *, coefficient: float = 1.0
) -> Tensor:
    """-r A, plus coefficient x |log ratio| on selected tokens, [N]."""
    plain = -token_ratio(logprobs, old_logprobs) * advantages.detach()
    return torch.where(selected, plain + coefficient * (logprobs - old_logprobs).abs(), plain)


def clip_cov(losses: Tensor, selected: Tensor) -> Tensor:
    """``losses`` [N] with the selected tokens' set to 0, so that they have no gradient; they still count."""
    return torch.where(selected, torch.zeros_like(losses), losses)
