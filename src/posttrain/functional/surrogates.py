"""Per-token policy losses [N]; reduce them with token weights. Advantages carry no gradient.

PPO clip: arXiv 1707.06347 eq. 7; clip-higher: arXiv 2503.14476 (DAPO); dual clip: arXiv 1912.09729 eq. 5;
CISPO: arXiv 2506.13585; SAPO: arXiv 2511.20347; DPPO: arXiv 2602.04879; DRO: arXiv 2405.19107.
GSPO is ``clipped`` with ``ratios.sequence_ratio(...)[samples]``, GSPO-token with the straight-through ratio.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from posttrain.functional.masked import row_mean
from posttrain.functional.ratios import LIMIT, token_ratio


def clipped(
    ratio: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> Tensor:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A); with A < 0 at most -dual_clip x A. All [N]."""
    advantages = advantages.detach()
    plain = ratio * advantages
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    loss = -torch.minimum(plain, bounded)
    if dual_clip is None:
        return loss
    return torch.where(advantages < 0, torch.minimum(loss, -dual_clip * advantages), loss)


def clip_sides(ratio: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """Where the clip is active, bool [N] each: low (A < 0 and r below) and high (A > 0 and r above)."""
    low = (advantages < 0) & (ratio < 1 - clip_low)
    high = (advantages > 0) & (ratio > 1 + clip_high)
    return low, high


def reinforce(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """-A log p, [N]: its value means nothing, its gradient is the policy gradient."""
    return -advantages.detach() * logprobs


def cispo(logprobs: Tensor, ratio: Tensor, advantages: Tensor, *, clip_low: float = 1.0, clip_high: float) -> Tensor:
    """REINFORCE weighted by the detached ratio in [1 - clip_low, 1 + clip_high], [N]: no token loses its gradient.

    The bounds are relative to 1: a library's absolute cap of 5 is ``clip_high=4``. ``clip_low=1`` leaves the lower
    bound out, as in the paper.
    """
    return reinforce(logprobs, ratio.detach().clamp(1 - clip_low, 1 + clip_high) * advantages)


def sapo(ratio: Tensor, advantages: Tensor, *, temperature: float = 1.0, negative_temperature: float = 1.05) -> Tensor:
    """-(4 / tau) sigmoid(tau (r - 1)) A, [N]: a soft gate instead of a clip; at r = 1 the gradient is REINFORCE's.

    tau is ``temperature`` where A > 0, else ``negative_temperature``.
    """
    tau = torch.full_like(ratio, negative_temperature).masked_fill(advantages > 0, temperature)
    return -(4 / tau) * torch.sigmoid(tau * (ratio - 1)) * advantages.detach()


def dppo_keep(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    divergence: Literal["tv", "kl"] = "tv",
    low: float = 0.2,
    high: float = 0.2,
) -> Tensor:
    """Tokens still inside the trust region, bool [N]: dropped only if they moved too far in the advantage's direction.

    Distance of the two-outcome distributions (this token, any other): tv |p - p_old|, or kl KL(p_old || p). ``high``
    bounds rises where A > 0, ``low`` falls where A < 0. A rare token may so grow tenfold, a frequent one may not.
    """
    new, old = logprobs.detach().exp(), old_logprobs.exp()
    if divergence == "tv":
        distance = (new - old).abs()
    else:
        rest, old_rest = (1 - new).clamp(min=1e-8), (1 - old).clamp(min=1e-8)
        distance = old * (old_logprobs - logprobs.detach()) + old_rest * (old_rest / rest).log()
    rising = (advantages > 0) & (new > old) & (distance > high)
    falling = (advantages < 0) & (new < old) & (distance > low)
    return ~(rising | falling)


def dppo(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, keep: Tensor, *, cap: float = 20.0) -> Tensor:
    """REINFORCE weighted by the detached ratio, at most ``cap``, on kept tokens; 0 on the others, [N]."""
    weight = token_ratio(logprobs, old_logprobs).detach().clamp(max=cap)
    return torch.where(keep, reinforce(logprobs, weight * advantages), torch.zeros_like(logprobs))


def dro(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, beta: float = 0.1) -> Tensor:
    """-(A log p - beta / 2 (log p - log p_old)^2), [N]: a quadratic tether instead of a clip."""
    return reinforce(logprobs, advantages) + 0.5 * beta * (logprobs - old_logprobs) ** 2


def geometric_mean(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, samples: Tensor, count: int, *, clip: float = 0.4
) -> Tensor:
    """GMPO (arXiv 2507.20673): -A exp(mean over the row of the clipped log ratio), [N], the same for all its tokens.

    Each log ratio is held within +-``clip`` on the pessimistic side only: from above where A > 0, else from below.
    ``advantages`` [N] must be constant in a row.
    """
    difference = (logprobs - old_logprobs).clamp(-LIMIT, LIMIT)
    held = torch.where(advantages > 0, difference.clamp(max=clip), difference.clamp(min=-clip))
    return -advantages.detach() * row_mean(held, samples, count).exp()[samples]
