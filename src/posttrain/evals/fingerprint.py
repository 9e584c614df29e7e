"""The protocol fingerprint: everything besides the weights that moves an evaluation's numbers.

Two results may be compared only if their fingerprints are equal; `differences` says in words where they are not.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from typing import Any

import pydantic

import posttrain
from posttrain.records.json_lines import to_plain
from posttrain.types import Sampling

NAMES = {
    "template_hash": "chat template",
    "tasks_digest": "task set",
    "task_count": "number of tasks",
    "verifier": "verifier",
    "samples": "samples per task",
    "version": "posttrain version",
    "sampling.max_new_tokens": "token limit (max_new_tokens)",
}
"""How a part of the protocol is called in a warning; a sampling parameter goes by its own name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fingerprint:
    """The protocol of one evaluation."""

    template_hash: str
    """sha256 hex of the chat template and special tokens."""
    sampling: Mapping[str, Any]
    """Every sampling parameter, the token limit included."""
    tasks_digest: str
    """sha256 hex of ids, messages and answers of the tasks, in order."""
    task_count: int
    """Number of tasks."""
    verifier: str
    """sha256 hex of the reward's parts and their options, and of what counts as right."""
    samples: int
    """Completions per task."""
    version: str = posttrain.__version__
    """Version of posttrain, whose reading of answers may change."""

    @property
    def digest(self) -> str:
        """sha256 hex over all parts: equal digests mean the same protocol."""
        return hashed(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """The parts as JSON can hold them."""
        return dict(to_plain(asdict(self)))

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Fingerprint:
        """Read what `to_json` gave."""
        return cls(**{field.name: row[field.name] for field in fields(cls)})


def fingerprint(
    *, template_hash: str, sampling: Sampling, tasks_digest: str, task_count: int, verifier: str, samples: int
) -> Fingerprint:
    """Return the fingerprint of an evaluation about to start."""
    return Fingerprint(
        template_hash=template_hash,
        sampling=to_plain(asdict(sampling)),
        tasks_digest=tasks_digest,
        task_count=task_count,
        verifier=verifier,
        samples=samples,
    )


def differences(left: Fingerprint, right: Fingerprint) -> list[str]:
    """Return one line per part in which two protocols differ, in plain words; empty if numbers may be compared."""
    before, after = _flat(left), _flat(right)
    return [
        f"{NAMES.get(name, name.removeprefix('sampling.'))} differs: {_short(before[name])} and {_short(after[name])}"
        for name in before
        if name in after and before[name] != after[name]
    ] + [
        f"{name.removeprefix('sampling.')} is part of only one of the protocols"
        for name in sorted(before.keys() ^ after.keys())
    ]


def verifier_digest(parts: Iterable[Any], right: str = "") -> str:
    """Return the sha256 hex of a reward: class and options of each part, how parts combine, and what is right.

    ``parts``: the rubric's parts, each with a ``reward`` and the fields that weigh it; ``right``: a description of
    the rule that says whether a rollout is right.
    """
    return hashed([[_describe(part) for part in parts], right])


def hashed(content: Any) -> str:
    """Return the sha256 hex of plain content, written as sorted JSON."""
    return sha256(json.dumps(content, sort_keys=True, ensure_ascii=False, default=str).encode()).hexdigest()


def _describe(part: Any) -> dict[str, Any]:
    reward = part.reward
    config = getattr(reward, "config", None)
    options = config.model_dump() if isinstance(config, pydantic.BaseModel) else {}
    combined = {name: getattr(part, name) for name in ("name", "weight", "only_if", "unparsable")}
    return {"reward": _name(type(reward)), "options": _stable(options), **combined}


def _stable(value: Any) -> Any:
    """Return an option as plain content that is the same in every process: a function becomes its source text."""
    if isinstance(value, Mapping):
        return {str(key): _stable(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_stable(entry) for entry in value]
    if not callable(value):
        return to_plain(value)
    try:
        return inspect.getsource(value)
    except (OSError, TypeError):
        return _name(value if hasattr(value, "__qualname__") else type(value))


def _name(thing: Any) -> str:
    return f"{thing.__module__}:{thing.__qualname__}"


def _flat(protocol: Fingerprint) -> dict[str, Any]:
    row = protocol.to_json()
    sampling = row.pop("sampling")
    return row | {f"sampling.{name}": value for name, value in sampling.items()}


def _short(value: Any) -> str:
    return value[:12] if isinstance(value, str) and len(value) == 64 else str(value)
