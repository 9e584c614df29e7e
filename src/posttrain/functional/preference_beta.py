"""beta-DPO: choose each batch's beta from its mean gap, and leave out pairs whose gap is an outlier.

arXiv 2407.08639 and its code (junkangwu/beta-DPO). With gaps g of the whole step (not scaled by beta):
    mean, std  <- exponential averages over training steps, divided by 1 - decay^t
    w_i        = exp(-((g_i - mean) / std)^2 / 2);  keep a share, drawn without replacement with weights w
    beta       = max(floor, beta_0 (1 + strength (mean gap kept - mean)))
Unlike that code, the averages are debiased (it starts from 0, which weighs the first steps' pairs by 1e-50), never
move in evaluation, and are of the whole step's gaps, drawn with one seed for all ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class GapMoments:
    """Exponential averages of the gaps' mean and standard deviation; a run's state, kept in its checkpoint."""

    decay: float = 0.9
    """Weight of the past in each update."""
    raw_mean: float = 0.0
    """Average of batch means, not debiased."""
    raw_deviation: float = 0.0
    """Average of batch standard deviations (ddof 1), not debiased."""
    updates: int = 0
    """Training steps observed."""

    @property
    def mean(self) -> float:
        """Debiased mean gap; NaN before the first step."""
        return self._debias(self.raw_mean)

    @property
    def deviation(self) -> float:
        """Debiased standard deviation of the gaps; NaN before the first step."""
        return self._debias(self.raw_deviation)

    def observe(self, gaps: Tensor) -> GapMoments:
        """Return the moments after a training step with ``gaps`` [n] of the WHOLE step; never call it in evaluation.

        One gap alone has deviation 0. Raises ValueError when there are none.
        """
        values = gaps.detach().double()
        if values.numel() == 0:
            raise ValueError("a step without pairs has no gaps to observe")
        deviation = float(values.std(correction=1)) if values.numel() > 1 else 0.0
        return GapMoments(
            decay=self.decay,
            raw_mean=self.decay * self.raw_mean + (1 - self.decay) * float(values.mean()),
            raw_deviation=self.decay * self.raw_deviation + (1 - self.decay) * deviation,
            updates=self.updates + 1,
        )

    def _debias(self, value: float) -> float:
        return value / (1 - self.decay**self.updates) if self.updates else math.nan


def log_typicality(gaps: Tensor, moments: GapMoments) -> Tensor:
    """log w: -((gap - mean) / deviation)^2 / 2, detached float64 [n]; all 0 before the first step or if nothing varies.

    arXiv 2407.08639; its exponential is the weight of each pair in the draw.
    """
    values = gaps.detach().double()
    if not moments.updates or moments.deviation == 0:
        return torch.zeros_like(values)
    return -0.5 * ((values - moments.mean) / moments.deviation) ** 2


def draw_kept(log_weights: Tensor, *, drop_share: float, seed: int) -> Tensor:
    """Which pairs stay, bool [n]: floor((1 - drop_share) n), at least one, without replacement, weights exp(log w).

    Drawn by Gumbel-top-k, which is the same distribution as successive draws (arXiv 1903.06059) and, working with
    logarithms, knows no zero probability. All ranks must pass the same seed and the gathered weights. Raises
    ValueError unless 0 <= drop_share < 1.
    """
    if not 0 <= drop_share < 1:
        raise ValueError(f"drop_share must be at least 0 and below 1, got {drop_share}")
    count = log_weights.numel()
    kept = max(1, math.floor((1 - Fraction(str(drop_share))) * count))
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(count, generator=generator, dtype=torch.float64).clamp(min=1e-300)
    noise = -torch.log(-torch.log(uniform))
    chosen = torch.topk(log_weights.cpu().double() + noise, min(kept, count)).indices
    mask = torch.zeros(count, dtype=torch.bool)
    mask[chosen] = True
    return mask.to(log_weights.device)


def dynamic_beta(
    mean_gap: float, moments: GapMoments, *, beta: float = 0.1, strength: float = 0.6, floor: float = 1e-3
) -> float:
    """beta (1 + strength (mean_gap - moments.mean)), at least ``floor``; plain ``beta`` before the first step.

    arXiv 2407.08639 as its code has it: the gap is not multiplied by beta, which makes the same strength
    1 / beta times as strong as in the paper. Small gaps (informative pairs) give a small beta, a bolder update.
    """
    if not moments.updates:
        return beta
    return max(floor, beta * (1 + strength * (mean_gap - moments.mean)))
