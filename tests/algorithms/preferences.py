"""The golden pairs F3 as token batches, for tests of algorithms on preferences."""

from collections.abc import Mapping, Sequence

import torch

from posttrain.types import Loss, TokenBatch
from tests.golden.fixtures_preference import F3

Row = tuple[int, int]
"""Pair number and side: 0 chosen, 1 rejected."""
ROWS: tuple[Row, ...] = tuple((pair, side) for pair in range(4) for side in range(2))
TOTALS = {"pairs": 4.0, "comparing": 4.0, "rollouts": 8.0, "pair_tokens": float(sum(F3["len_c"]))}
NAMES = {"pi": ("pi_c", "pi_r"), "ref": ("ref_c", "ref_r"), "len": ("len_c", "len_r")}


def fact(kind: str, row: Row) -> float:
    """A number of F3."""
    return F3[NAMES[kind][row[1]]][row[0]]


def tokens(kind: str, row: Row) -> torch.Tensor:
    """Uneven token log-probabilities, float64, whose sum is the golden one."""
    count = int(fact("len", row))
    shape = torch.linspace(0.5, 1.5, count, dtype=torch.float64)
    return fact(kind, row) * shape / shape.sum()


def pair_batch(
    rows: Sequence[Row] = ROWS,
    *,
    rewards: Mapping[Row, float] | None = None,
    reference: str | None = "ref",
    totals: Mapping[str, float] = TOTALS,
) -> TokenBatch:
    """These rows of F3; ``reference = "pi"`` makes policy and reference alike, None leaves it out."""
    counts = torch.tensor([int(fact("len", row)) for row in rows], dtype=torch.int64)
    given = {row: 1.0 - row[1] for row in rows} | dict(rewards or {})
    return TokenBatch(
        samples=torch.repeat_interleave(torch.arange(len(rows)), counts),
        sample_count=len(rows),
        advantages=torch.ones(int(counts.sum()), dtype=torch.float64),
        token_weight={},
        ref_logprobs=None if reference is None else torch.cat([tokens(reference, row) for row in rows]),
        groups=torch.tensor([pair for pair, _ in rows]),
        rollouts=torch.tensor([side for _, side in rows]),
        rewards=torch.tensor([given[row] for row in rows], dtype=torch.float64),
        totals=totals,
    )


def policy(rows: Sequence[Row] = ROWS) -> torch.Tensor:
    """The policy's log-probabilities of these rows, a leaf with gradient."""
    return torch.cat([tokens("pi", row) for row in rows]).requires_grad_()


def evaluate(algorithm, rows: Sequence[Row] = ROWS, **options) -> Loss:
    """The algorithm's loss on these rows."""
    return algorithm.loss(pair_batch(rows, **options), policy(rows), None, None)


def value(loss: Loss) -> float:
    """The loss as a number."""
    return float(loss.total.detach())


def row_gradients(algorithm, rows: Sequence[Row] = ROWS, **options) -> dict[Row, list[float]]:
    """Gradient of the loss by each row's token log-probabilities."""
    leaf = policy(rows)
    loss = algorithm.loss(pair_batch(rows, **options), leaf, None, None)
    (gradient,) = torch.autograd.grad(loss.total, leaf)
    parts = torch.split(gradient, [int(fact("len", row)) for row in rows])
    return {row: part.tolist() for row, part in zip(rows, parts, strict=True)}
