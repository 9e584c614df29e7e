"""Leaves out tasks that the policy nearly always or never solves, and comes back to them some passes later.

Each rollout of a task measures its pass rate: from ``easy`` on it rests ``easy_rest`` passes over the tasks,
up to ``hard`` it rests ``hard_rest`` passes. Nothing is drawn at random, so the order stays a function of the records.
"""

from __future__ import annotations

from collections.abc import Mapping

from posttrain.config import Curriculum


class Rests:
    """Which tasks rest, and until when."""

    def __init__(self, section: Curriculum) -> None:
        self.section = section
        self._due: dict[int, int] = {}

    def resting(self, index: int, epoch: int) -> bool:
        """Whether the task at ``index`` is left out in this pass over the tasks."""
        return epoch < self._due.get(index, 0)

    def observe(self, index: int, epoch: int, pass_rate: float) -> None:
        """Take in the share of a task's rollouts that passed when it was rolled out in pass ``epoch``."""
        section, rest = self.section, 0
        if pass_rate >= section.easy:
            rest = section.easy_rest
        elif pass_rate <= section.hard:
            rest = section.hard_rest
        if rest:
            self._due[index] = epoch + 1 + rest
        else:
            self._due.pop(index, None)

    def count(self, epoch: int) -> int:
        """Number of tasks that rest in a pass."""
        return sum(due > epoch for due in self._due.values())

    def state(self) -> dict[str, int]:
        """What a checkpoint keeps: the pass in which each resting task is due again, by index."""
        return {str(index): due for index, due in sorted(self._due.items())}

    def restore(self, state: Mapping[str, int]) -> None:
        """Take over what ``state`` gave."""
        self._due = {int(index): int(due) for index, due in state.items()}
