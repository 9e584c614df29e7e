"""Accounting of dynamic sampling (DAPO, arXiv 2503.14476, eq. 11): sample until enough groups carry a comparison.

The reward after the filter is pulled towards the middle and is no pass rate, so both are kept. Generation grows by
one over the acceptance; the saving is per optimizer step only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from posttrain.functional.groups import degenerate


def valid_probability(pass_rate: float, group_size: int) -> float:
    """Probability that a group of 0/1 rewards is neither all right nor all wrong: 1 - p^G - (1 - p)^G."""
    return 1 - pass_rate**group_size - (1 - pass_rate) ** group_size


@dataclass(frozen=True, kw_only=True, slots=True)
class Accounting:
    """What was sampled for one optimizer step and what became of it."""

    kept: int
    """Groups that train."""
    surplus: int
    """Further groups that would have: keep them, with their version, for the next step."""
    generated: int
    """Rollouts sampled."""
    trained: int
    """Rollouts that train."""
    solve_all: int
    """Groups dropped because every rollout was right."""
    solve_none: int
    """Groups dropped because none was."""
    acceptance: float
    """Share of groups that carry a comparison; NaN if none was sampled."""
    reward_before: float
    """Mean reward of everything sampled: the one to report."""
    reward_after: float
    """Mean reward of what trains."""


def account(groups: Sequence[Tensor], target: int, *, right_above: float = 0.5, tolerance: float = 0.0) -> Accounting:
    """Count ``groups`` of rewards [G], in the order they were asked for, towards ``target`` groups.

    Groups are taken in that order, not in the order they finish, which would favour short answers.
    """
    same = [degenerate(group, tolerance) for group in groups]
    valid = [group for group, flat in zip(groups, same, strict=True) if not flat]
    right = sum(
        float(group.mean()) > right_above for group, flat in zip(groups, same, strict=True) if flat and len(group)
    )
    kept = valid[:target]
    return Accounting(
        kept=len(kept),
        surplus=len(valid) - len(kept),
        generated=sum(len(group) for group in groups),
        trained=sum(len(group) for group in kept),
        solve_all=right,
        solve_none=len(groups) - len(valid) - right,
        acceptance=len(valid) / len(groups) if groups else float("nan"),
        reward_before=_mean(groups),
        reward_after=_mean(kept),
    )


def _mean(groups: Sequence[Tensor]) -> float:
    return float(torch.cat([group.double() for group in groups]).mean()) if groups else float("nan")
