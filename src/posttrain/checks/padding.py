"""The padding side changes nothing: left-padded rows through transformers' own attention give our log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from posttrain.batches.pack import pack
from posttrain.checks.exactness import tolerance
from posttrain.checks.report import CheckResult, bounded
from posttrain.loops.update import own_logprobs
from posttrain.protocols import Learner
from posttrain.types import Sample

ROWS = 4
"""Rows that are compared."""


def check_padding_side(samples: Sequence[Sample], learner: Learner) -> CheckResult:
    """Compare our right-padded rows with left-padded rows under an attention mask, as an independent reference."""
    name = "padding side changes nothing"
    model: Any = getattr(learner, "model", None)
    if model is None:
        return CheckResult(name=name, status="skip", measured="the learner shows no local model", expected="one")
    chosen = [replace(sample) for sample in sorted(samples, key=len)[:: max(1, len(samples) // ROWS)][:ROWS]]
    own = own_logprobs(chosen, learner, lambda rows: pack(rows, token_budget=10**9, layout="padded"))
    left = left_padded_logprobs(chosen, model, float(getattr(learner, "temperature", 1.0)))
    worst = max(
        float(np.max(np.abs(a[s.loss_mask] - b[s.loss_mask]))) for s, a, b in zip(chosen, own, left, strict=True)
    )
    return bounded(name, worst if np.isfinite(worst) else np.inf, tolerance(learner))


def left_padded_logprobs(samples: Sequence[Sample], model: Any, temperature: float) -> list[np.ndarray]:
    """Log-probability of every token but the first of each row, by transformers' own forward; NaN at index 0."""
    width = max(len(sample) for sample in samples)
    ids = torch.zeros(len(samples), width, dtype=torch.long)
    mask = torch.zeros(len(samples), width, dtype=torch.long)
    for row, sample in enumerate(samples):
        ids[row, width - len(sample) :] = torch.from_numpy(sample.ids)
        mask[row, width - len(sample) :] = 1
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    ids, mask, positions = (tensor.to(model.device) for tensor in (ids, mask, positions))
    implementation = model.config._attn_implementation
    # Eager attention takes its softmax in float32, where a padded row of a float64 mask is all -inf and gives NaN.
    model.set_attn_implementation("sdpa" if model.dtype == torch.float64 else "eager")
    try:
        with torch.no_grad():
            logits = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
    finally:
        model.set_attn_implementation(implementation)
    scores = (logits.double() / (temperature or 1.0)).log_softmax(-1)
    picked = scores[:, :-1].gather(-1, ids[:, 1:, None])[..., 0].cpu().numpy()
    return [np.concatenate([[np.nan], picked[row, width - len(s) :]]) for row, s in enumerate(samples)]
