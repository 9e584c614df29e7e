"""The rollouts of a step as a parquet file: one row per rollout, its tokens as they were sampled and trained.

``rollouts/step-000123.parquet`` opens with pandas or DuckDB. Lists per token stand inside ``segments``, one entry per
token row of the rollout; what has no plain column type (task, messages, scores) is JSON text.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from posttrain.errors import RecordError
from posttrain.records.files import TEMPORARY, explained, write_atomically
from posttrain.records.json_lines import to_plain
from posttrain.types import Ending, Group, Outcome, Rollout, Sample, Score, Segment, Task

__all__ = ["RolloutStore", "TokenColumns"]

NAME = re.compile(r"step-(\d{6,})\.parquet")

_LOGPROBS = pa.list_(pa.float64())
_SEGMENT = pa.struct(
    [
        ("ids", pa.list_(pa.int64())),
        ("loss_mask", pa.list_(pa.bool_())),
        ("rollout_logprobs", _LOGPROBS),
        ("versions", pa.list_(pa.int64())),
        ("turns", pa.list_(pa.int64())),
        ("prompt_length", pa.int64()),
        ("advantages", _LOGPROBS),
        ("old_logprobs", _LOGPROBS),
        ("ref_logprobs", _LOGPROBS),
    ]
)
SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("position", pa.int64()),
        ("task_id", pa.string()),
        ("index", pa.int64()),
        ("seed", pa.uint64()),
        ("reward", pa.float64()),
        ("advantage", pa.float64()),
        ("ending", pa.string()),
        ("turn_count", pa.int64()),
        ("sampled_tokens", pa.int64()),
        ("text", pa.string()),
        ("scores", pa.string()),
        ("turn_scores", pa.string()),
        ("messages", pa.string()),
        ("task", pa.string()),
        ("group_failed", pa.int64()),
        ("segments", pa.list_(_SEGMENT)),
    ]
)
"""Columns; ``advantage`` is the mean over trained tokens, ``sampled_tokens`` the sum over segments."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TokenColumns:
    """What training added to one segment; arrays have one entry per token of the row, NaN where nothing trains."""

    advantages: np.ndarray | None
    """float64 [L], or None if the segment did not train."""
    old_logprobs: np.ndarray | None
    """float64 [L], or None if they were not computed."""
    ref_logprobs: np.ndarray | None
    """float64 [L], or None if they were not computed."""


class RolloutStore:
    """Writes and reads the rollouts of a run, one file per step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, step: int, groups: Sequence[Group], samples: Sequence[Sample] = ()) -> Path:
        """Write a step's groups at once; a group without rollouts leaves no row.

        Args:
            step: number of the step.
            groups: scored groups, also those that were filtered out.
            samples: the rows they trained as, for advantages and the learner's log-probabilities.

        Raises:
            RecordError: the disk is full or broken.
        """
        trained = _by_tokens(samples)
        rows = [_to_row(step, group, rollout, trained) for group in groups for rollout in group.rollouts]
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), sink, compression="zstd")
        path = self.path(step)
        with explained(f"writing {path.name}", self.folder.parent):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, sink.getvalue())
        return path

    def path(self, step: int) -> Path:
        """Return the file of a step, whether or not it exists."""
        return self.folder / f"step-{step:06d}.parquet"

    def steps(self) -> list[int]:
        """Return the steps that have a file, ascending."""
        names = [NAME.fullmatch(file.name) for file in self.folder.glob("step-*.parquet")]
        return sorted(int(match[1]) for match in names if match)

    def read(self, step: int) -> tuple[Group, ...]:
        """Return the groups of a step, as they were written.

        Raises:
            RecordError: the step was not stored, or the file is damaged.
        """
        groups: dict[int, list[dict[str, Any]]] = {}
        for row in self._rows(step):
            groups.setdefault(row["position"], []).append(row)
        return tuple(_to_group(rows) for rows in groups.values())

    def read_token_columns(self, step: int) -> dict[tuple[int, int], tuple[TokenColumns, ...]]:
        """Return, by (group position, rollout index), what training added to each segment."""
        return {
            (row["position"], row["index"]): tuple(
                TokenColumns(**{name: _array(segment[name]) for name in TokenColumns.__slots__})
                for segment in row["segments"]
            )
            for row in self._rows(step)
        }

    def cut_back(self, step: int) -> int:
        """Remove the files after ``step`` and half-written ones; return how many steps went."""
        later = [number for number in self.steps() if number > step]
        for file in [*map(self.path, later), *self.folder.glob(f"{TEMPORARY}*")]:
            file.unlink(missing_ok=True)
        return len(later)

    def _rows(self, step: int) -> list[dict[str, Any]]:
        path = self.path(step)
        if not path.is_file():
            stored = self.steps()
            span = f"; stored are {len(stored)} steps from {stored[0]} to {stored[-1]}" if stored else "; none are"
            raise RecordError(f"the rollouts of step {step} are not stored in {self.folder}{span}")
        try:
            rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
        except (pa.ArrowException, OSError) as error:
            raise RecordError(f"{path} is damaged: {error}") from error
        return rows


def _by_tokens(samples: Sequence[Sample]) -> dict[tuple[int, int, bytes], Sample]:
    """Index samples by group, rollout and token ids, which tell a rollout's segments apart."""
    return {(s.group, s.rollout, np.asarray(s.ids, np.int64).tobytes()): s for s in samples}


def _to_row(
    step: int, group: Group, rollout: Rollout, trained: Mapping[tuple[int, int, bytes], Sample]
) -> dict[str, Any]:
    keys = [(group.position, rollout.index, np.array(s.ids, np.int64).tobytes()) for s in rollout.segments]
    segments = [_segment_row(s, trained.get(key)) for s, key in zip(rollout.segments, keys, strict=True)]
    advantages = [a for s in segments for a in s["advantages"] or () if a is not None and not np.isnan(a)]
    return {
        "step": step,
        "position": group.position,
        "task_id": rollout.task.id,
        "index": rollout.index,
        "seed": rollout.seed % 2**64,
        "reward": rollout.reward,
        "advantage": float(np.mean(advantages)) if advantages else None,
        "ending": rollout.ending.value,
        "turn_count": rollout.turn_count,
        "sampled_tokens": rollout.sampled_count,
        "text": _valid(rollout.text),
        "scores": _json(
            [
                {f: getattr(score, f) for f in ("name", "value", "outcome", "detail", "steps")}
                for score in rollout.scores
            ]
        ),
        "turn_scores": _json(rollout.turn_scores),
        "messages": _json(rollout.messages),
        "task": _json({f: getattr(rollout.task, f) for f in ("id", "messages", "answer", "columns", "source")}),
        "group_failed": group.failed,
        "segments": segments,
    }


def _segment_row(segment: Segment, sample: Sample | None) -> dict[str, Any]:
    own = ("ids", "loss_mask", "rollout_logprobs", "versions", "turns", "prompt_length")
    row = {name: getattr(segment, name) for name in own}
    for name in ("advantages", "old_logprobs", "ref_logprobs"):
        values = None if sample is None else getattr(sample, name)
        row[name] = None if values is None or sample is None else np.where(sample.loss_mask, values, np.nan).tolist()
    return row


def _to_group(rows: Sequence[dict[str, Any]]) -> Group:
    rollouts = tuple(_to_rollout(row) for row in rows)
    return Group(position=rows[0]["position"], task=rollouts[0].task, rollouts=rollouts, failed=rows[0]["group_failed"])


def _to_rollout(row: Mapping[str, Any]) -> Rollout:
    task = json.loads(row["task"])
    scores = [_to_score(score) for score in json.loads(row["scores"])]
    return Rollout(
        task=Task(**{**task, "messages": tuple(task["messages"])}),
        index=row["index"],
        seed=row["seed"],
        segments=tuple(_to_segment(segment) for segment in row["segments"]),
        messages=tuple(json.loads(row["messages"])),
        text=row["text"],
        ending=Ending(row["ending"]),
        turn_count=row["turn_count"],
        scores=tuple(scores),
        reward=row["reward"],
        turn_scores=tuple(json.loads(row.get("turn_scores") or "[]")),
    )


def _to_score(row: Mapping[str, Any]) -> Score:
    """A score of a file, also of one from before scores had steps."""
    steps = tuple((int(end), float(value)) for end, value in row.get("steps", ()))
    return Score(**{**row, "outcome": Outcome(row["outcome"]), "steps": steps})


def _to_segment(row: Mapping[str, Any]) -> Segment:
    names = ("ids", "loss_mask", "rollout_logprobs", "versions", "turns")
    lists: dict[str, Any] = {name: tuple(row[name]) for name in names}
    return Segment(**lists, prompt_length=row["prompt_length"])


def _array(values: Sequence[float] | None) -> np.ndarray | None:
    return None if values is None else np.array(values, dtype=np.float64)


def _json(value: Any) -> str:
    return json.dumps(to_plain(value), allow_nan=False)


def _valid(text: str) -> str:
    """Return the text with lone surrogates, which no file can hold, written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
