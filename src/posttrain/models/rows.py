"""Turns a microbatch into tensors: the rows a model reads, and the flat batch of trained tokens a loss reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from posttrain.models.attention import BlockPlan
from posttrain.models.images import image_tensors
from posttrain.types import Microbatch, Sample, TokenBatch


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RowTensors:
    """What the forward pass of one microbatch needs."""

    ids: torch.Tensor
    """int64 [rows, width]."""
    positions: torch.Tensor
    """int64 [rows, width]."""
    sources: torch.Tensor
    """int64 [N]: places in the flattened rows whose hidden state predicts a trained token."""
    targets: torch.Tensor
    """int64 [N]: the trained token ids."""
    plan: BlockPlan | None
    """Attention structure of the single row; None for padded rows (plain causal attention)."""
    images: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """The model's image arguments, in row order; empty for text."""


def tensors(microbatch: Microbatch, device: torch.device | str) -> RowTensors:
    """Return the microbatch's arrays as tensors on the device, and the attention plan of its blocks."""
    packed = microbatch.layout != "padded"
    return RowTensors(
        ids=torch.as_tensor(microbatch.ids, device=device),
        positions=torch.as_tensor(microbatch.positions, device=device),
        sources=torch.as_tensor(microbatch.sources, device=device),
        targets=torch.as_tensor(microbatch.targets, device=device),
        plan=BlockPlan(microbatch.blocks, device=device) if packed else None,
        images=image_tensors(microbatch, device),
    )


def token_batch(microbatch: Microbatch, *, dtype: torch.dtype, device: torch.device | str) -> TokenBatch:
    """Return the trained tokens of the microbatch, sample after sample, left to right.

    Old, reference and teacher log-probabilities are None unless every sample has them; those of the rollout are None
    if all are NaN (nobody sampled these tokens). Weight streams are those that every sample has.
    """
    samples = microbatch.samples
    counts = np.array([int(sample.loss_mask.sum()) for sample in samples], np.int64)
    names = [
        name for name in (samples[0].token_weight if samples else ()) if all(name in s.token_weight for s in samples)
    ]

    def floats(arrays: Sequence[np.ndarray]) -> torch.Tensor:
        return torch.as_tensor(_select(samples, arrays), dtype=dtype, device=device)

    def optional(field: str) -> torch.Tensor | None:
        arrays = [getattr(sample, field) for sample in samples]
        return None if not arrays or any(array is None for array in arrays) else floats(arrays)

    rollout = _select(samples, [sample.rollout_logprobs for sample in samples])
    turns = _select(samples, [sample.turns for sample in samples])
    selected = optional("selected")
    return TokenBatch(
        samples=torch.as_tensor(np.repeat(np.arange(len(samples)), counts), device=device),
        sample_count=len(samples),
        advantages=floats([sample.advantages for sample in samples]),
        token_weight={name: floats([sample.token_weight[name] for sample in samples]) for name in names},
        old_logprobs=optional("old_logprobs"),
        rollout_logprobs=None if np.isnan(rollout).all() else torch.as_tensor(rollout, dtype=dtype, device=device),
        ref_logprobs=optional("ref_logprobs"),
        teacher_logprobs=optional("teacher_logprobs"),
        turns=torch.as_tensor(turns, dtype=torch.int64, device=device),
        selected=None if selected is None else selected.bool(),
        old_values=optional("values"),
        returns=optional("returns"),
        groups=torch.tensor([sample.group for sample in samples], dtype=torch.int64, device=device),
        rewards=torch.tensor([sample.reward for sample in samples], dtype=dtype, device=device),
        rollouts=torch.tensor([sample.rollout for sample in samples], dtype=torch.int64, device=device),
        totals=samples[0].totals if samples else {},
    )


def _select(samples: Sequence[Sample], arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Take the trained places of each sample's array and join them."""
    parts = [array[sample.loss_mask] for sample, array in zip(samples, arrays, strict=True)]
    return np.concatenate([np.zeros(0), *parts])
