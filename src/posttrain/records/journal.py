"""Everything a loop writes about a run, in the order that a kill cannot spoil.

A step is recorded in rollouts, metrics and ledger after the weights changed; whatever lies beyond the newest
checkpoint when a run is resumed is cut away, so each record stands for exactly one step of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.errors import RecordError
from posttrain.protocols import Learner
from posttrain.records.checkpoints import Checkpoint, newest_complete, prune, write_checkpoint
from posttrain.records.ledger import State
from posttrain.records.metrics import StepRecord
from posttrain.records.rollout_store import RolloutStore
from posttrain.records.run_directory import RunDirectory
from posttrain.tasks.order import TaskOrder
from posttrain.types import Group, Sample, Task


class Journal:
    """Writes one run's records."""

    def __init__(self, run: RunDirectory, *, rollouts_every: int = 1, keep_checkpoints: int = 2) -> None:
        self.run = run
        self._rollouts_every = rollouts_every
        self._keep = keep_checkpoints

    def issued(self, drawn: Iterable[tuple[int, Task]], order: TaskOrder, version: int) -> None:
        """Enter prompts that are given to the engine or the learner."""
        for position, task in drawn:
            self.run.ledger.issue(position, task.id, epoch=order.epoch(position), version=version)

    def scored(self, groups: Sequence[Group]) -> None:
        """Enter groups that came back with rewards."""
        self.run.ledger.mark([group.position for group in groups if group.rollouts], State.SCORED)

    def record(
        self,
        *,
        step: int,
        version: int,
        seconds: float,
        metrics: Mapping[str, float],
        groups: Sequence[Group],
        samples: Sequence[Sample],
        trained: Sequence[int],
        dropped: Sequence[int],
    ) -> None:
        """Write a finished step: rollouts, metrics, ledger."""
        if groups and self._rollouts_every and step % self._rollouts_every == 0:
            self.run.rollouts.write(step, groups, samples)
        self.run.metrics.append(StepRecord(step=step, version=version, seconds=seconds, metrics=metrics))
        self.run.ledger.mark(trained, State.TRAINED, step=step)
        self.run.ledger.mark(dropped, State.DROPPED, step=step)

    def keep_batch(self, step: int, groups: Sequence[Group], samples: Sequence[Sample]) -> Path:
        """Store a batch that must not be lost; return its file."""
        return RolloutStore(self.run.path / "kept").write(step, groups, samples)

    def checkpoint(
        self, step: int, state: Mapping[str, Any], learner: Learner, tokenizer: Any, *, surplus: Sequence[Group] = ()
    ) -> Path:
        """Write a checkpoint of ``step`` and remove old ones; ``model/`` in it is a folder that others can load.

        ``surplus`` are scored groups that wait for a later batch: they cannot be rolled again as they were, for the
        weights that sampled them are gone.
        """
        self.run.ledger.flush()
        writers: dict[str, Callable[[Path], Any]] = {".": learner.save, "model": tokenizer.save_pretrained}
        if surplus:
            writers["surplus"] = lambda folder: RolloutStore(folder).write(step, surplus)
        path = write_checkpoint(self.run.checkpoints, step, writers, state)
        prune(self.run.checkpoints, self._keep)
        return path

    def resume(self, learner: Learner) -> tuple[Checkpoint | None, tuple[str, ...]]:
        """Load the newest whole checkpoint into the learner and cut the records back to it.

        A run that was killed before its first checkpoint starts again from its first step. Returns what was found
        and what was passed over. Raises RecordError, and touches nothing, if there are checkpoints and all are damaged.
        """
        search = newest_complete(self.run.checkpoints)
        found = search.checkpoint
        if found is None and search.messages:
            raise RecordError(
                f"no checkpoint of {self.run.path} is whole, and nothing was changed. {' '.join(search.messages)} "
                f"Restore one from a copy, or remove {self.run.checkpoints} to begin again from the first step."
            )
        step = found.step if found else 0
        position = int(found.state["position"]) if found else 0
        if found:
            learner.load(found.path)
        self.run.cut_back(step, position)
        return found, search.messages

    def surplus(self, found: Checkpoint) -> tuple[Group, ...]:
        """Return the groups that a checkpoint keeps for later, and enter them as scored again."""
        store = RolloutStore(found.path / "surplus")
        groups = store.read(found.step) if store.steps() else ()
        self.scored(groups)
        return groups
