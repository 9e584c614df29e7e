"""One tree of errors: each says what was wrong, what was got and expected, and what to do.

``PosttrainError`` is what the command line catches and prints without a traceback; anything else is a bug.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PosttrainError(Exception):
    """A failure that the user can understand and act on."""

    exit_code = 1


class ConfigError(PosttrainError):
    """A recipe, option or combination that cannot run."""

    exit_code = 2


class DataError(PosttrainError):
    """A task file or column that cannot be used."""

    exit_code = 2


class ModelError(PosttrainError):
    """A model or tokenizer that cannot be loaded or lacks what the run needs."""

    exit_code = 2


class RewardError(PosttrainError):
    """Scoring broke so often that training on the rest would be wrong."""


class CheckError(PosttrainError):
    """An invariant does not hold."""

    exit_code = 3


class RecordError(PosttrainError):
    """A run directory or checkpoint that cannot be read or written."""


class Diverged(PosttrainError):
    """Too many non-finite steps in a row; the batch was kept."""


class Interrupted(PosttrainError):
    """The user or the system asked the run to stop; a checkpoint was written."""

    exit_code = 130


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the nearest choice, or the list of choices when none is near."""
    known = sorted(set(choices))
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if near:
        return f" Did you mean '{near[0]}'?"
    return f" Choose from: {', '.join(known)}." if known else ""
