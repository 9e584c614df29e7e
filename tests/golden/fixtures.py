"""The numbers behind the golden values: F1, four rows of up to five tokens, and F2, one row of two turns.

Masked places of F1 and F2 hold garbage on purpose. `flat` picks the trained tokens, which is all a function sees.
"""

import json
from pathlib import Path
from typing import Any

import torch

from posttrain.functional.masked import flatten


def f64(values: Any) -> torch.Tensor:
    """A float64 tensor."""
    return torch.tensor(values, dtype=torch.float64)


OLD = f64(
    [[-1.0, -0.5, -9.0, -0.7, -0.2], [-0.9, -1.1, -0.3, 0, 0], [-2.0, -0.1, -0.6, -1.5, 0], [-0.4, -1.2, 0, 0, 0]]
)
DELTA = f64(
    [[0.10, -0.05, 5.0, 0.30, -0.30], [-0.25, 0.20, 0.05, 7, 7], [0.60, -0.02, -0.40, 0, -3], [0, 0.25, 9, 9, 9]]
)
NEW = OLD + DELTA
MASK = torch.tensor([[1, 1, 0, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 0, 0, 0]], dtype=torch.bool)
REWARD = f64([1.0, 0.0, 1.0, 0.5])
REF = OLD + f64([[0.2, -0.1, 3, 0, 0.1], [-0.3, 0.4, 0, 5, 5], [0.1, 0, 0.5, -0.2, 1], [0, -0.6, 1, 1, 1]])
ROLL = OLD - f64([[0.02, -0.03, 1, 1.20, -0.10], [-0.90, 0, 0.05, 2, 2], [0.3, 0.01, -0.02, 0, 2], [0, 0.80, 2, 2, 2]])
ADVANTAGE = REWARD - REWARD.mean()

SAMPLES, old, new, ref, roll = flatten(MASK, OLD, NEW, REF, ROLL)
COUNT = 4
COUNTS = MASK.sum(1)
A = ADVANTAGE[SAMPLES]
TURNS = torch.tensor([0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0])

F2_MASK = torch.tensor([1, 1, 1, 0, 0, 1, 1, 0], dtype=torch.bool)
F2_VALUES = f64([0.5, 0.4, 0.6, 9.0, -9.0, 0.3, 0.8, 7.0])[F2_MASK]
F2_REWARDS = f64([0, 0, 0.2, 5.0, 0, 0, 1.0, 3.0])[F2_MASK]
F2_TURNS = torch.tensor([0, 0, 0, 1, 1])
F2_SAMPLES = torch.zeros(5, dtype=torch.int64)


def spread(values: torch.Tensor, mask: torch.Tensor = MASK) -> torch.Tensor:
    """Put flat values back to their places; 0 elsewhere, as the golden files write masked places."""
    out = torch.zeros(mask.shape, dtype=values.dtype)
    out[mask] = values
    return out


def golden(name: str) -> dict[str, Any]:
    """The facts of ``golden_NAME.json``."""
    return json.loads((Path(__file__).parent / f"golden_{name}.json").read_text(encoding="utf-8"))


def plain(value: Any) -> Any:
    """Tensors as nested lists of floats, so that they compare with JSON."""
    if isinstance(value, torch.Tensor):
        return value.detach().tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def same(expected: Any, actual: Any, tolerance: float = 1e-9) -> bool:
    """Equal structure, numbers within ``tolerance`` (absolute, or relative above one)."""
    if isinstance(expected, dict):
        return expected.keys() == actual.keys() and all(same(v, actual[k], tolerance) for k, v in expected.items())
    if isinstance(expected, list):
        return len(expected) == len(actual) and all(
            same(a, b, tolerance) for a, b in zip(expected, actual, strict=True)
        )
    return abs(float(expected) - float(actual)) <= tolerance * max(1.0, abs(float(expected)))


def uncovered(name: str, *covers: dict[str, Any]) -> set[str]:
    """Golden keys that no test covers, and covered keys that are not golden."""
    return set(golden(name)) ^ set().union(*covers)
