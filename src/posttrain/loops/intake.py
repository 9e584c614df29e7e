"""What one batch takes in: groups until enough of them teach something, what is left for the next, what is counted.

Dynamic sampling (DAPO, https://arxiv.org/abs/2503.14476, section 3.2): the algorithm's filter thins a batch, and
further draws fill it up, at most ``Needs.refill`` of them. Groups count in the order they were asked for, never in
that in which they finished, which would favour short answers. What is kept beyond the batch is surplus: fewer groups
than a batch, in the checkpoint, first in line next time, dropped once it is too many versions old.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from posttrain.functional.dynamic_sampling import account
from posttrain.rollouts.group import Tally, merge_tallies
from posttrain.types import Group, Task


@dataclass(kw_only=True, slots=True)
class Intake:
    """The groups of one batch, while it is filled."""

    target: int
    """Groups of a full batch."""
    draws: int
    """Most draws."""
    keep: Callable[[Group], bool]
    """The algorithm's filter."""
    position: int
    """Next place in the task order."""
    carried: tuple[Group, ...] = ()
    """Surplus of earlier batches that is young enough."""
    stale: tuple[Group, ...] = ()
    """Surplus that is too old."""
    drawn: list[tuple[int, Task]] = field(default_factory=list)
    """What was asked for, in order."""
    groups: list[Group] = field(default_factory=list)
    """What came back, in the same order."""
    kept: list[Group] = field(default_factory=list)
    """What the filter lets through, carried groups first."""
    tally: Tally = field(default_factory=Tally)
    """What became of the rollouts."""
    done: int = 0
    """Draws so far."""

    def __post_init__(self) -> None:
        self.kept = list(self.carried)

    @property
    def hungry(self) -> bool:
        """Whether another draw is due."""
        return self.done < self.draws and (self.done == 0 or len(self.kept) < self.target)

    @property
    def wanted(self) -> int:
        """Tasks of the next draw: what is missing, by the share that the filter has let through in this batch."""
        missing = max(self.target - len(self.kept), 1 if self.done == 0 else 0)
        if self.done == 0:
            return missing
        accepted = (len(self.kept) - len(self.carried) + 1) / (len(self.groups) + 2)
        return min(math.ceil(missing / accepted), self.target)

    def add(self, groups: Sequence[Group], tally: Tally) -> None:
        """Take in the groups of a draw; one of which no rollout is left is never kept."""
        self.groups += groups
        self.kept += [group for group in groups if group.rollouts and self.keep(group)]
        self.tally = merge_tallies([self.tally, tally])
        self.done += 1

    @property
    def counted(self) -> list[Group]:
        """The groups that train, oldest first."""
        return self.kept[: self.target]

    @property
    def surplus(self) -> tuple[Group, ...]:
        """What is kept beyond them."""
        return tuple(self.kept[self.target :])

    @property
    def settled(self) -> list[Group]:
        """Groups whose fate this batch decides: all but the surplus."""
        waiting = {group.position for group in self.surplus}
        return [g for g in (*self.stale, *self.carried, *self.groups) if g.position not in waiting]

    @property
    def dropped(self) -> list[int]:
        """Positions that never train: filtered, failed or stale."""
        alive = {group.position for group in self.kept}
        return [group.position for group in self.stale] + [p for p, _ in self.drawn if p not in alive]

    def numbers(self) -> dict[str, float]:
        """Metrics of the filter, before and after it; the mean reward after it is no measure of ability."""
        if self.draws <= 1:
            return {"groups/dropped": float(len(self.dropped))}
        rewards = [torch.tensor(group.rewards, dtype=torch.float64) for group in self.groups if group.rollouts]
        found = account(rewards, max(self.target - len(self.carried), 0))
        after = [reward for group in self.counted for reward in group.rewards]
        return {
            "groups/dropped": float(len(self.dropped)),
            "groups/trained": float(len(self.counted)),
            "groups/carried": float(len(self.carried)),
            "groups/surplus": float(len(self.surplus)),
            "groups/stale": float(len(self.stale)),
            "groups/draws": float(self.done),
            "groups/acceptance": (len(self.kept) - len(self.carried)) / max(len(self.groups), 1),
            "groups/solve_all": float(found.solve_all),
            "groups/solve_none": float(found.solve_none),
            "reward/trained": sum(after) / len(after) if after else math.nan,
            "rollouts/count": float(self.tally.rollouts),
        }


def split_by_age(surplus: Sequence[Group], version: int, bound: int) -> tuple[tuple[Group, ...], tuple[Group, ...]]:
    """(Young enough, too old): a group is as old as its oldest token, and may be ``bound`` versions behind."""
    young = tuple(group for group in surplus if version - oldest_version(group) <= bound)
    return young, tuple(group for group in surplus if version - oldest_version(group) > bound)


def oldest_version(group: Group) -> int:
    """Version of the weights that sampled the group's oldest token."""
    return min(
        version
        for rollout in group.rollouts
        for segment in rollout.segments
        for version, sampled in zip(segment.versions, segment.loss_mask, strict=True)
        if sampled
    )
