"""Numbers to watch in every step, from the tokens that train: entropy, ratio, engine gap, KL to the reference."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from posttrain.functional.kl import k1, k3
from posttrain.functional.ratios import token_ratio
from posttrain.protocols import LossFunction
from posttrain.types import Loss, Stat, TokenBatch


def watched(loss: LossFunction, heard: Callable[[np.ndarray], None] = lambda logprobs: None) -> LossFunction:
    """Return the loss with the watched numbers added to its stats; the total is untouched.

    ``heard`` is given the log-probabilities, float64 [N], that the gradient was taken at.
    """

    def call(batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        result = loss(batch, logprobs, entropy, values)
        heard(logprobs.detach().double().cpu().numpy())
        with torch.no_grad():
            stats = watch(batch, logprobs, entropy, values)
        return Loss(total=result.total, stats={**stats, **result.stats})

    return call


def watch(batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None = None) -> dict[str, Stat]:
    """Canonical metric names to stats over the trained tokens of one microbatch."""
    stats = {"tokens/trained": Stat(kind="sum", value=float(len(logprobs)))}
    if not len(logprobs):
        return stats
    if entropy is not None:
        stats["entropy"] = _mean(entropy)
    if values is not None:
        stats["value/mean"] = _mean(values)
    if batch.old_logprobs is not None:
        ratio = token_ratio(logprobs, batch.old_logprobs)
        stats["ratio/mean"] = _mean(ratio)
        stats["ratio/max"] = Stat(kind="max", value=float(ratio.max()))
    if batch.rollout_logprobs is not None:
        anchor = logprobs if batch.old_logprobs is None else batch.old_logprobs
        known = ~batch.rollout_logprobs.isnan()
        gap = (anchor - batch.rollout_logprobs)[known].abs()
        stats["logprob_gap/mean"] = _mean(gap)
        stats["logprob_gap/max"] = Stat(kind="max", value=float(gap.max()) if len(gap) else 0.0)
    if batch.ref_logprobs is not None:
        stats["kl_ref/k1"] = _mean(k1(logprobs, batch.ref_logprobs))
        stats["kl_ref/k3"] = _mean(k3(logprobs, batch.ref_logprobs))
    return stats


def _mean(values: Tensor) -> Stat:
    return Stat(kind="mean", value=float(values.double().sum()), count=float(values.numel()))
