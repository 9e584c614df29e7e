"""A stored batch: scored rollouts with what every model said of their tokens, to compare algorithms on.

The packaged one comes from a real run of the toy model (``bench/make_stored_batch.py``): eight groups of eight, seven
of them with different rewards, trained on for eight optimizer steps, so that ratios differ from one and clips act. A
run directory's step has what the run stored; what it did not store is said, never made up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from posttrain.records.rollout_store import RolloutStore, TokenColumns
from posttrain.records.run_directory import RunDirectory
from posttrain.types import Group, Rollout

__all__ = ["NUMBERS", "StoredBatch", "packaged", "run_step"]

NUMBERS = ("logprobs", "old_logprobs", "ref_logprobs", "teacher_logprobs", "values", "old_values", "entropy")
"""What may be known of each sampled token."""

Key = tuple[int, int]
"""Position of the group and index of the rollout."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StoredBatch:
    """Groups, and per rollout and segment the numbers of its tokens (float64 [L], NaN where not sampled)."""

    label: str
    """Where it comes from."""
    groups: tuple[Group, ...]
    """The scored groups."""
    numbers: Mapping[str, Mapping[Key, tuple[np.ndarray, ...]]]
    """For each known number of NUMBERS, one array per segment of each rollout."""
    longest: float
    """The most tokens a completion could have."""
    pieces: Mapping[tuple[int, int, int], str] = field(default_factory=dict)
    """Text of single tokens by position, index and place in the first segment; empty if there is no tokenizer."""
    notes: tuple[str, ...] = ()
    """What a reader must know."""

    @property
    def moved(self) -> bool:
        """Whether the policy is known after optimizer steps on this batch, so that ratios differ from one."""
        return self.numbers["logprobs"] is not self.numbers["old_logprobs"]

    def first_step(self) -> StoredBatch:
        """The batch as the first optimizer step sees it: the policy is still the one that sampled."""
        before = {"logprobs": "old_logprobs", "values": "old_values"}
        numbers = {name: self.numbers[before.get(name, name)] for name in self.numbers}
        return replace(self, numbers=numbers)

    def has(self, name: str) -> bool:
        """Whether a number is known for every sampled token."""
        return name in self.numbers


def packaged() -> StoredBatch:
    """The batch that comes with posttrain."""
    with as_file(files(__package__) / "stored") as folder:
        groups = with_greedy(RolloutStore(folder).read(1), RolloutStore(folder).read(2))
        table = pq.read_table(folder / "tokens.parquet").to_pydict()
    keys = list(zip(table["position"], table["index"], table["place"], strict=True))
    numbers = {name: _spread(groups, keys, table[name]) for name in NUMBERS}
    return StoredBatch(
        label="packaged: 64 rollouts of the toy model",
        groups=groups,
        numbers=numbers,
        longest=12.0,
        pieces=dict(zip(keys, table["piece"], strict=True)),
        notes=("later step: eight optimizer steps on this batch, ratios differ from 1 and clips act",),
    )


def with_greedy(groups: Sequence[Group], greedy: Sequence[Group]) -> tuple[Group, ...]:
    """The groups, each with the rollout at temperature 0 of its own task."""
    found = {group.position: group.rollouts[0] for group in greedy}
    return tuple(replace(group, greedy=found[group.position]) for group in groups)


def _spread(
    groups: Sequence[Group], keys: Sequence[tuple[int, int, int]], values: Sequence[float]
) -> dict[Key, tuple[np.ndarray, ...]]:
    """Flat values at (position, index, place) as one array per rollout's single segment."""
    found: dict[Key, tuple[np.ndarray, ...]] = {
        (group.position, rollout.index): (np.full(len(rollout.segments[0].ids), np.nan),)
        for group in groups
        for rollout in group.rollouts
    }
    for (position, index, place), value in zip(keys, values, strict=True):
        found[(position, index)][0][place] = value
    return found


def run_step(path: str | Path, step: int) -> StoredBatch:
    """A stored step of a run; RecordError if there is no such run or step."""
    with RunDirectory.open(path, write=False) as run:
        groups = run.rollouts.read(step)
        columns = run.rollouts.read_token_columns(step)
        longest = float(run.recipe.rollouts.max_new_tokens)
    numbers = stored_numbers(columns)
    notes = ["a run stores no log-probabilities from after the update: only the first step, ratio 1, is compared"]
    rollouts = {(group.position, rollout.index): rollout for group in groups for rollout in group.rollouts}
    old = {key: tuple(part.old_logprobs for part in parts) for key, parts in columns.items()}
    missing = [key for key in rollouts if any(row is None for row in old[key])]
    if missing:
        notes.append(f"the engine's own log-probabilities stand in for old ones of {len(missing)} rollouts")
    whole = {key: _reported(rollout) if key in missing else old[key] for key, rollout in rollouts.items()}
    numbers["old_logprobs"] = numbers["logprobs"] = whole
    return StoredBatch(
        label=f"step {step} of {path}", groups=groups, numbers=numbers, longest=longest, notes=tuple(notes)
    )


def stored_numbers(columns: Mapping[Key, tuple[TokenColumns, ...]]) -> dict[str, Any]:
    """What the run stored of every single row, by name."""
    numbers = {}
    for name in TokenColumns.__slots__:
        rows = {key: tuple(getattr(part, name) for part in parts) for key, parts in columns.items()}
        if name in NUMBERS and rows and all(row is not None for parts in rows.values() for row in parts):
            numbers[name] = rows
    return numbers


def _reported(rollout: Rollout) -> tuple[np.ndarray, ...]:
    """What the engine reported when it sampled, one array per segment."""
    return tuple(np.asarray(segment.rollout_logprobs, dtype=np.float64) for segment in rollout.segments)
