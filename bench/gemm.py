"""Rate of matrix products on this machine, one thread, in CPU seconds: what the needed work is measured by."""

from __future__ import annotations

import time

import torch

SHAPES = {
    "body": (4096, 128, 384),
    "body-9m": (4096, 192, 512),
    "decode": (64, 128, 384),
    "decode-9m": (64, 192, 512),
    "head": (4096, 128, 104),
    "head-9m": (512, 192, 32000),
    "head-decode-9m": (64, 192, 32000),
    "square": (1024, 1024, 1024),
}
"""Rows x inner x columns of the products that the models make."""


def rate(rows: int, inner: int, columns: int, seconds: float = 0.25) -> float:
    """Best GFLOP/s of one shape over ``seconds`` of trying."""
    left, right = torch.randn(rows, inner), torch.randn(columns, inner)
    product = 2.0 * rows * inner * columns
    repeats = max(1, int(2e8 / product))
    torch.nn.functional.linear(left, right)
    best, end = float("inf"), time.process_time() + seconds
    while time.process_time() < end:
        start = time.process_time()
        for _ in range(repeats):
            torch.nn.functional.linear(left, right)
        best = min(best, (time.process_time() - start) / repeats)
    return product / best / 1e9


def rates() -> dict[str, float]:
    """GFLOP/s of every shape, single thread."""
    torch.set_num_threads(1)
    return {name: rate(*shape) for name, shape in SHAPES.items()}
