"""Rows from the datasets library (extra ``[data]``): names on the hub, folders it saved, folders of data files."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from posttrain.errors import DataError, did_you_mean

SAVED = ("dataset_dict.json", "state.json")
"""Files by which a folder written by ``save_to_disk`` is known."""


def dataset_rows(name: str, options: Mapping[str, Any], *, split: str = "train") -> Iterator[dict[str, Any]]:
    """Yield the rows of one split; ``options`` go to ``load_dataset`` (for example ``name = "main"``).

    Raises DataError if the library is missing, the data cannot be found or read, or there is no such split.
    """
    try:
        library = importlib.import_module("datasets")
    except ImportError as error:
        raise DataError(
            'the datasets library is not installed. Install it with: pip install "posttrain[data]"'
        ) from error
    folder = Path(name)
    try:
        if any((folder / file).is_file() for file in SAVED):
            loaded = library.load_from_disk(name)
        else:
            loaded = library.load_dataset(name, **options)
    except (OSError, ValueError, TypeError, RuntimeError, library.exceptions.DatasetsError) as error:
        hint = "" if folder.exists() else " Check the name; a private or remote data set needs a network and access."
        raise DataError(f"dataset '{name}' cannot be loaded: {error}.{hint}") from error
    yield from _one_split(name, loaded, split)


def _one_split(name: str, loaded: Any, split: str) -> Any:
    """Return the split of a dictionary of data sets; a single saved data set has no splits and is taken whole."""
    if not isinstance(loaded, Mapping):
        return loaded
    if split not in loaded:
        raise DataError(f"dataset '{name}' has no split '{split}'.{did_you_mean(split, loaded)}")
    return loaded[split]
