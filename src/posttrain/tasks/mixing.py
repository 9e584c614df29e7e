"""Mix several task sets by weight into one stream of positions.

The shares are exact: of the first n positions, the first source holds ``floor(n * share)`` or one more, evenly
spread; the rest of the stream is divided among the other sources in the same way. A position is answered with
integers alone and nothing is stored, so resume needs the position only.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from hashlib import sha256

from posttrain.errors import ConfigError
from posttrain.tasks.order import TaskOrder, rollout_seed, stable_hash
from posttrain.tasks.taskset import TaskSet
from posttrain.types import Task


class Mixture:
    """A stream of tasks from several sources, each in its own shuffled order."""

    def __init__(self, sources: Sequence[TaskSet], weights: Sequence[float], *, seed: int) -> None:
        """Weights are relative and above zero; raises ConfigError otherwise."""
        if not sources or len(sources) != len(weights):
            raise ConfigError(f"a mixture needs one weight per source; got {len(sources)} and {len(weights)}")
        if any(not 0 < weight < float("inf") for weight in weights):
            raise ConfigError(f"weights of a mixture must be finite and above zero; got {list(weights)}")
        self.sources = tuple(sources)
        self.seed = seed
        self.name = " + ".join(source.name for source in sources)
        self.digest = sha256(
            "".join(f"{s.digest}{w!r}" for s, w in zip(sources, weights, strict=True)).encode()
        ).hexdigest()
        exact = [Fraction(str(weight)) for weight in weights]
        self._shares = [weight / sum(exact[number:]) for number, weight in enumerate(exact)]
        self._orders = [TaskOrder(len(s), stable_hash("mixture", seed, number)) for number, s in enumerate(sources)]

    def locate(self, position: int) -> tuple[int, int]:
        """Return (source, index of the task in it) at a position from 0."""
        source, place = self._place(position)
        return source, self._orders[source].index(place)

    def task(self, position: int) -> Task:
        """Return the task at a position."""
        source, index = self.locate(position)
        return self.sources[source][index]

    def rollout_seed(self, position: int, index: int) -> int:
        """Return the 63-bit seed of one rollout of the group at a position."""
        return rollout_seed(self.seed, position, index)

    def _place(self, position: int) -> tuple[int, int]:
        """Return (source, how many of its tasks came before), peeling off one source at a time."""
        place = position
        for source, share in enumerate(self._shares):
            before = _ceiling(place * share)
            if _ceiling((place + 1) * share) > before:
                return source, before
            place -= before
        raise AssertionError("the last share is one, so the last source takes every place that is left")


def _ceiling(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)
