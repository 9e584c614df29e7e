"""Writes files so that a reader, or a kill at any moment, sees the old content or the new one, never half."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from posttrain.errors import RecordError
from posttrain.models.complete import sync_folder

__all__ = ["TEMPORARY", "explained", "is_disk_full", "megabytes", "write_atomically"]

TEMPORARY = ".tmp-"
"""Beginning of the names of files and folders that are being written."""


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file's content, durably and all at once; what was written aside is removed on failure."""
    aside = path.with_name(f"{TEMPORARY}{path.name}")
    try:
        with open(aside, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextmanager
def explained(action: str, folder: Path) -> Iterator[None]:
    """Turn a failing disk into a RecordError that says what was being done and, if it is full, how much is free."""
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            free = megabytes(shutil.disk_usage(folder).free)
            raise RecordError(
                f"{action}: the disk of {folder} is full ({free} free). Free space, then continue with --resume."
            ) from error
        raise RecordError(f"{action}: {error.strerror or error} ({error.filename or folder})") from error


def is_disk_full(error: BaseException) -> bool:
    """True if the error, or the message a native library wrapped it in, says that no space is left."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    text = str(error).lower()
    return "no space left" in text or "os error 28)" in text or "disk is full" in text


def megabytes(count: int) -> str:
    """Return a number of bytes as people read it."""
    return f"{count / 1e6:,.1f} MB" if count < 1e9 else f"{count / 1e9:,.2f} GB"
