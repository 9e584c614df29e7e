"""Tasks from reasoning_gym (extra ``[tasks]``): over a hundred procedural tasks with their own verifiers.

Item i of a data set with seed s is drawn from s + i, so two seeds that lie closer than the size share problems.
The held-out split therefore starts 2**30 further on.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from posttrain.errors import ConfigError, did_you_mean

USUAL_SIZE = 500
"""Problems if options give no size."""
TEST_OFFSET = 2**30
"""Added to the seed for every split but ``train``."""


def gym_rows(name: str, options: Mapping[str, Any], *, seed: int = 0, split: str = "train") -> list[dict[str, Any]]:
    """Return rows with question, answer, metadata and source_dataset from ``create_dataset(name, ...)``.

    ``options`` go to the task; ``size``, ``seed`` and ``split`` among them win over the arguments.
    Raises ConfigError if the library is missing or the name or an option is wrong.
    """
    try:
        library = importlib.import_module("reasoning_gym")
        known = importlib.import_module("reasoning_gym.factory").DATASETS
    except ImportError as error:
        raise ConfigError('reasoning_gym is not installed. Install it with: pip install "posttrain[tasks]"') from error
    if name not in known:
        raise ConfigError(f"reasoning_gym has no task '{name}'.{did_you_mean(name, known)}")
    rest = dict(options)
    split = rest.pop("split", split)
    start = rest.pop("seed", seed) + (0 if split == "train" else TEST_OFFSET)
    size = rest.pop("size", USUAL_SIZE)
    try:
        dataset = library.create_dataset(name, seed=start, size=size, **rest)
    except (TypeError, ValueError, AssertionError) as error:
        fields = [field for field in known[name][1].__dataclass_fields__ if field not in ("seed", "size")]
        raise ConfigError(
            f"reasoning_gym task '{name}' refuses the options {dict(options)}: {error}. It has: {', '.join(fields)}."
        ) from error
    return [_row(name, start, number, dataset[number]) for number in range(size)]


def _row(name: str, start: int, number: int, entry: Mapping[str, Any]) -> dict[str, Any]:
    answer = entry.get("answer")
    return {
        "id": f"{name}-{start}-{number}",
        "question": entry["question"],
        "answer": None if answer is None else str(answer),
        "metadata": entry.get("metadata", {}),
        "source_dataset": name,
    }
