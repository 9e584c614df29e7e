"""What a run ran on: versions, commit, machine, seeds and threads, for ``environment.json``. Loads no torch."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import posttrain

__all__ = ["describe_environment", "git_state", "package_versions"]

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "peft", "numpy", "pyarrow", "pydantic")


def describe_environment(
    *,
    seeds: Mapping[str, int],
    threads: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the environment as JSON can hold it.

    Args:
        seeds: the run's seeds by what they are for.
        threads: the thread plan: number, reason, environment variables.
        model: name, digest and device of the model.
    """
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": sys.argv,
        "versions": package_versions(),
        "git": {"posttrain": git_state(Path(posttrain.__file__).parent), "working_directory": git_state(Path.cwd())},
        "machine": {
            "system": platform.platform(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "memory_bytes": _memory(),
        },
        "seeds": dict(seeds),
        "threads": dict(threads or {}),
        "model": dict(model or {}),
    }


def package_versions() -> dict[str, str | None]:
    """Return the versions of Python, posttrain and what it computes with; None for what is not installed."""
    versions: dict[str, str | None] = {"python": platform.python_version(), "posttrain": posttrain.__version__}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return commit and whether tracked files differ from it; None outside a repository or without git."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "changed": bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))}


def _git(folder: Path, *words: str) -> str | None:
    program = shutil.which("git")
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "-C", str(folder), *words], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
