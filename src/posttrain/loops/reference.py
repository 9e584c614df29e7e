"""The reference's log-probabilities of a fixed data set, computed once and kept in the run directory.

A row is found again by its content, so changed data or a longer run compute what is new and nothing else. The file is
written at once before the first step: a resumed run reads the numbers that the run began with, bit for bit. It spares
the reference's forward from the second pass over the data on, and in every resumed run.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from posttrain.batches.build import build_samples
from posttrain.errors import RecordError
from posttrain.loops.session import Session
from posttrain.loops.update import own_logprobs
from posttrain.records.files import explained, write_atomically
from posttrain.types import Group, Sample, Task

FILE = "reference_logprobs.parquet"
"""Name in the run directory."""

References = Mapping[str, np.ndarray]
"""Log-probabilities of a row's trained tokens, by `row_key`."""


def precompute(session: Session, make_group: Callable[[Session, int, Task], Group]) -> References:
    """Return what the run's file holds, completed for all rows the run will read."""
    path = session.journal.run.path / FILE
    known = dict(read_references(path))
    count = session.recipe.batches.demonstrations_per_step
    last = min(session.recipe.run.steps * count, len(session.tasks))
    before = len(known)
    for first in range(0, last, count):
        session.stop.raise_if_asked()
        session.progress.station("reference")
        samples = [
            s for s in _rows(session, range(first, min(first + count, last)), make_group) if row_key(s) not in known
        ]
        values = own_logprobs(samples, session.learner, session.pack, reference=True) if samples else []
        known |= {row_key(s): row[s.loss_mask] for s, row in zip(samples, values, strict=True)}
    if len(known) > before:
        write_references(path, known)
    return known


def attach(samples: Sequence[Sample], references: References) -> list[Sample]:
    """Give every known row its reference log-probabilities; the others are left to the learner."""
    if not references:
        return list(samples)
    return [_with(sample, references.get(row_key(sample))) for sample in samples]


def row_key(sample: Sample) -> str:
    """Return a digest of all that the reference reads: ids, which of them train, and images."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(np.ascontiguousarray(sample.ids, np.int64).tobytes())
    digest.update(np.packbits(sample.loss_mask).tobytes())
    for name in sorted(sample.images):
        digest.update(name.encode() + np.asarray(sample.images[name]).tobytes())
    return digest.hexdigest()


def write_references(path: Path, references: References) -> None:
    """Write the file whole; RecordError if the disk does not take it."""
    keys = sorted(references)
    table = pa.table(
        {
            "row": pa.array(keys, pa.string()),
            "logprobs": pa.array([references[key] for key in keys], pa.list_(pa.float64())),
        }
    )
    stream = io.BytesIO()
    pq.write_table(table, stream)
    with explained("writing the reference's log-probabilities", path.parent):
        write_atomically(path, stream.getvalue())


def read_references(path: Path) -> References:
    """Read the file, nothing where there is none; RecordError if it is damaged."""
    if not path.exists():
        return {}
    try:
        rows = pq.read_table(path).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise RecordError(f"{path} cannot be read: {error}. Remove it, and it is computed again") from error
    return {row["row"]: np.array(row["logprobs"], dtype=np.float64) for row in rows}


def _rows(
    session: Session, positions: Iterable[int], make_group: Callable[[Session, int, Task], Group]
) -> list[Sample]:
    groups = [make_group(session, position, session.tasks[session.order.index(position)]) for position in positions]
    return [s for s in build_samples(groups, session.algorithm.advantages(groups)) if s.loss_mask.any()]


def _with(sample: Sample, values: np.ndarray | None) -> Sample:
    if values is None:
        return sample
    spread = np.full(len(sample), np.nan)
    spread[sample.loss_mask] = values
    return replace(sample, ref_logprobs=spread)
