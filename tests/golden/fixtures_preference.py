"""The numbers behind golden_pref, golden_distill and golden_search, and how to compare with them."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from posttrain.functional.preference import Pairs

TOLERANCE = 1e-9


def f64(values: Any) -> torch.Tensor:
    """A float64 tensor."""
    return torch.tensor(values, dtype=torch.float64)


def golden(name: str) -> dict[str, Any]:
    """The facts of one file, by key."""
    return json.loads((Path(__file__).parent / f"golden_{name}.json").read_text())


def plain(value: Any) -> Any:
    """Tensors as lists of numbers, whatever holds them."""
    if isinstance(value, torch.Tensor):
        return value.detach().tolist()
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def close(expected: Any, actual: Any) -> bool:
    """Equal in shape and, number by number, within 1e-9 (absolute, or relative above one)."""
    if isinstance(expected, Mapping):
        return expected.keys() == actual.keys() and all(close(item, actual[key]) for key, item in expected.items())
    if isinstance(expected, Sequence) and not isinstance(expected, str):
        return len(expected) == len(actual) and all(close(a, b) for a, b in zip(expected, actual, strict=True))
    if isinstance(expected, int | float):
        return math.isclose(expected, actual, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return expected == actual


F3 = golden("pref")["F3"]


def pairs(**changes: torch.Tensor | None) -> Pairs:
    """F3: four pairs, float64."""
    values: dict[str, Any] = {
        "chosen": f64(F3["pi_c"]),
        "rejected": f64(F3["pi_r"]),
        "ref_chosen": f64(F3["ref_c"]),
        "ref_rejected": f64(F3["ref_r"]),
        "chosen_count": torch.tensor(F3["len_c"]).long(),
        "rejected_count": torch.tensor(F3["len_r"]).long(),
    }
    return Pairs(**(values | changes))


KTO_DESIRABLE = torch.tensor([True, False, True, False])
KTO_LOG_RATIOS = f64([-12.0, -8.0, -20.0, -9.0]) - f64([-12.5, -8.2, -21.0, -7.5])
KTO_MISMATCHED = f64([-30.0, -25.0, -18.0, -22.0]) - f64([-31.0, -24.5, -19.0, -22.4])
GAPS = (f64([1.0, 3.0, 0.0, 4.0]), f64([2.0, 2.0, -1.0, 5.0]), f64([0.5, 1.5, 2.5, 3.5]))
REWARDS = f64([0.8, 0.2, -0.5, 0.1])
ORDER_RANKS = torch.tensor([0, 1, 3, 2])
"""Rank of each reward in the order answer 0, 1, 3, 2."""
ONE_LIST = torch.zeros(4, dtype=torch.long)
CHOSEN_SCORES, REJECTED_SCORES = f64([1.2, 0.3, -0.5]), f64([0.2, 0.6, -0.9])
MARGINS = f64([0.0, 0.5, 1.0])
MEMBERS = f64([[1.0, 0.2], [0.8, 0.9], [1.3, -0.4]])
"""Scores of three ensemble members for two answers."""
MEMBER_REFERENCE = f64([[0.0, 1.0, 2.0], [10.0, 30.0, 50.0], [-1.0, 0.0, 1.0]])
STEP_LOGITS = f64([2.0, -1.0, 0.5])
SOFT_LABELS = f64([0.9, 0.2, 0.6])
ANSWERS = ("7", "8", "7", "9", "8", "8")
ANSWER_SCORES = (0.9, 0.3, 0.4, 0.95, 0.35, 0.2)
