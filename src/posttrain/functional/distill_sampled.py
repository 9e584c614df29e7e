"""On-policy distillation from sampled tokens: the reverse KL as an advantage, detached, one number per token, [N].

A_t = log q(y_t) - log p(y_t) on the student's own tokens, discount 0. In a policy-gradient loss its expected gradient
at each visited prefix is exactly minus the gradient of KL(student || teacher) there (not of the sequence's KL, which
needs the return to go). Thinking Machines, "On-policy distillation"; MiMo-V2-Flash eq. 7-9; the return to go is
MiniLLM's, arXiv 2306.08543. Never whiten it: its zero means that both agree.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from posttrain.functional.masked import row_count, row_sum


def sampled_advantage(
    teacher_logprobs: Tensor,
    student_logprobs: Tensor,
    *,
    coefficient: float = 1.0,
    limit: float | None = None,
    baseline: Tensor | None = None,
) -> Tensor:
    """coefficient x clip(log q - log p + baseline, +-limit), detached, [N].

    ``student_logprobs`` [N] are those of the policy at the start of the update. ``limit`` bounds single tokens (5 is
    in use). ``baseline`` [N], the full-vocabulary reverse KL at each token, makes the mean zero (vOPD, arXiv
    2605.07865). Raises ValueError for a limit that is not positive.
    """
    if limit is not None and limit <= 0:
        raise ValueError(f"limit must be positive, got {limit}")
    advantage = (teacher_logprobs - student_logprobs).detach()
    if baseline is not None:
        advantage = advantage + baseline.detach()
    if limit is not None:
        advantage = advantage.clamp(-limit, limit)
    return coefficient * advantage


def return_to_go(
    advantages: Tensor, samples: Tensor, count: int, *, discount: float = 1.0, mean: bool = False
) -> Tensor:
    """sum_{u >= t} discount^(u - t) A_u inside each row, [N]; with ``mean`` divided by the sum of those discounts.

    MiniLLM, arXiv 2306.08543: the gradient of the whole sequence's reverse KL. ``samples`` must be ascending.
    """
    if bool((samples[1:] < samples[:-1]).any()):
        raise ValueError("samples must be ascending (row after row) to know which tokens come later")
    counts = row_count(samples, count)
    width = int(counts.max()) if count else 0
    places = torch.arange(len(samples), device=samples.device) - (counts.cumsum(0) - counts)[samples]
    padded = advantages.new_zeros(count, width).index_put((samples, places), advantages)
    present = advantages.new_zeros(count, width).index_put((samples, places), torch.ones_like(advantages))
    total = _discounted(padded, discount)
    return ((total / _discounted(present, discount).clamp(min=1)) if mean else total)[samples, places]


def prefix_weights(advantages: Tensor, samples: Tensor, count: int, *, strength: float = 0.5) -> Tensor:
    """1 + strength (1 - share of the row's |A| that lies before the token), detached, [N].

    IW-OPD as TRL has it: early tokens, whose prefixes both know, count more. Rows that agree throughout weigh
    1 + strength. ``samples`` must be ascending.
    """
    size = advantages.detach().abs().double()
    totals = row_sum(size, samples, count)
    before = size.cumsum(0) - size - (totals.cumsum(0) - totals)[samples]
    share = torch.where(totals[samples] > 0, before / totals[samples].clamp(min=torch.finfo(size.dtype).tiny), 0.0)
    return (1 + strength * (1 - share)).to(advantages.dtype)


@dataclass(frozen=True, kw_only=True, slots=True)
class StartGap:
    """How far the teacher is from the student before the first step."""

    reverse_kl: float
    """Mean of log p - log q over the student's own tokens, in nats per token."""
    tokens: int
    """Tokens it was estimated on."""
    far: bool
    """True above the limit: imitation from here tends to collapse entropy instead of teaching."""


def start_gap(teacher_logprobs: Tensor, student_logprobs: Tensor, *, limit: float = 0.15) -> StartGap:
    """Estimate the starting reverse KL from sampled tokens [N].

    Reported experience: teachers trained from the student's own start lie near 0.04 and work; a foreign, larger one at
    0.19 lost entropy and diverged. ``limit`` lies between. Raises ValueError without tokens.
    """
    count = student_logprobs.numel()
    if count == 0:
        raise ValueError("the start gap needs sampled tokens, got none")
    value = float((student_logprobs - teacher_logprobs).detach().double().mean())
    return StartGap(reverse_kl=value, tokens=count, far=value > limit)


def _discounted(values: Tensor, discount: float) -> Tensor:
    """Discounted sum from each place to the row's end, [count, width]."""
    running = values.new_zeros(values.shape[0])
    columns: list[Tensor] = []
    for column in reversed(values.unbind(dim=1)):
        running = column + discount * running
        columns.append(running)
    return torch.stack(columns[::-1], dim=1) if columns else values
