"""Lays given samples out as one microbatch: right-padded rows, one packed row, or one row with shared prompts.

A causal model needs a token's hidden state only to predict a later trained token, so each sample is computed up to
the token before its last trained one; the rest of the row, the last trained token included, costs nothing.
`posttrain.batches.pack` decides which samples go together; this file only places them. It loads no torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posttrain.types import Block, Layout, Microbatch, Sample


def computed_length(sample: Sample) -> int:
    """Return how many leading tokens must be computed: all before the last trained token, 0 if none trains."""
    trained = np.flatnonzero(sample.loss_mask)
    if not len(trained):
        return 0
    if trained[0] == 0:
        raise ValueError(
            f"sample of group {sample.group}, rollout {sample.rollout} trains its first token, which nothing predicts; "
            "its loss_mask must be False at index 0"
        )
    return int(trained[-1])


def shared_length(sample: Sample) -> int:
    """Return how many of the computed tokens belong to the prompt that samples of a group may share."""
    return min(sample.prompt_length, computed_length(sample))


def place_padded(samples: Sequence[Sample]) -> Microbatch:
    """Give every sample that trains a row of its own, filled with token 0 on the right.

    Padding comes after every token that is read, so causal attention needs no mask.
    """
    lengths = [computed_length(sample) for sample in samples]
    rows = [(sample, length) for sample, length in zip(samples, lengths, strict=True) if length]
    width = max(lengths, default=0)
    ids = np.zeros((len(rows), width), np.int64)
    sources = []
    for row, (sample, length) in enumerate(rows):
        ids[row, :length] = sample.ids[:length]
        sources.append(np.flatnonzero(sample.loss_mask) - 1 + row * width)
    positions = np.broadcast_to(np.arange(width, dtype=np.int64), ids.shape).copy()
    return _microbatch(samples, "padded", ids, positions, (), sources)


def place_packed(samples: Sequence[Sample]) -> Microbatch:
    """Put the samples behind each other in one row; positions restart and nobody sees a neighbour."""
    return _place_row([[sample] for sample in samples], "packed")


def place_shared(families: Sequence[Sequence[Sample]]) -> Microbatch:
    """Put families behind each other in one row; the prompt that a family's samples share lies there once.

    The samples of a family must have equal prompts (`same_prompt`). Branch positions restart at the prompt's length,
    and a branch's first token is predicted by the prompt's last one.
    """
    return _place_row(families, "shared")


def same_prompt(sample: Sample) -> tuple[int, int, bytes]:
    """Return a key that is equal for samples of one group whose computed prompts are equal token by token."""
    length = shared_length(sample)
    return sample.group, length, np.ascontiguousarray(sample.ids[:length], np.int64).tobytes()


def _place_row(families: Sequence[Sequence[Sample]], layout: Layout) -> Microbatch:
    ids: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    sources: list[np.ndarray] = []
    blocks: list[Block] = []
    start = 0
    for family in families:
        prefix = shared_length(family[0]) if len(family) > 1 else 0
        ids.append(family[0].ids[:prefix])
        positions.append(np.arange(prefix))
        branches: list[tuple[int, int]] = []
        end = start + prefix
        for sample in family:
            length = computed_length(sample)
            before = np.flatnonzero(sample.loss_mask) - 1
            sources.append(np.where(before < prefix, start + before, end + before - prefix))
            own = max(length - prefix, 0)
            ids.append(sample.ids[prefix : prefix + own])
            positions.append(np.arange(prefix, prefix + own))
            branches.append((end, own))
            end += own
        blocks.append(Block(prefix_start=start, prefix_length=prefix, branches=tuple(branches)))
        start = end
    samples = [sample for family in families for sample in family]
    return _microbatch(samples, layout, _join(ids)[None], _join(positions)[None], tuple(blocks), sources)


def _microbatch(
    samples: Sequence[Sample],
    layout: Layout,
    ids: np.ndarray,
    positions: np.ndarray,
    blocks: tuple[Block, ...],
    sources: Sequence[np.ndarray],
) -> Microbatch:
    return Microbatch(
        samples=tuple(samples),
        layout=layout,
        ids=ids,
        positions=positions,
        blocks=blocks,
        sources=_join(sources),
        targets=_join([sample.ids[sample.loss_mask] for sample in samples]),
    )


def _join(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64)
