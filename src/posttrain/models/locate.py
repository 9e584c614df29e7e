"""Finds the model folder a user means and says what it lacks before anything is loaded.

A path may be a model folder, a checkpoint of ours (its ``model/`` is taken) or a run directory (the ``model/`` of its
newest whole checkpoint is taken).
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from posttrain.errors import ModelError
from posttrain.models.complete import MARKER, find_damage

__all__ = ["check_folder", "fingerprint", "is_adapter", "looks_like_folder", "resolve_model_path"]

WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "adapter_model.bin")
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
CHECKPOINT = re.compile(r"step-\d+")


def resolve_model_path(path: str | Path) -> Path:
    """Return the folder that holds the model's files.

    Raises:
        ModelError: the path does not exist, is a file, or is a run or checkpoint without a whole model.
    """
    folder = Path(path).expanduser()
    if not folder.exists():
        raise ModelError(f"model folder {folder} does not exist")
    if not folder.is_dir():
        raise ModelError(f"model.path {folder} is a file; give the folder that holds config.json and the weights")
    if (folder / "config.json").is_file() or is_adapter(folder):
        return folder
    if (folder / "checkpoints").is_dir():
        return _newest(folder / "checkpoints")
    if (folder / "model").is_dir():
        damage = find_damage(folder, digests=False)
        if damage and (CHECKPOINT.fullmatch(folder.name) or (folder / MARKER).exists()):
            raise ModelError(f"checkpoint {folder} cannot be used: {damage}. Take an earlier one.")
        return folder / "model"
    if any(CHECKPOINT.fullmatch(child.name) for child in folder.iterdir()):
        return _newest(folder)
    return folder


def check_folder(folder: Path) -> None:
    """Refuse a folder that cannot be loaded, saying which file is missing.

    Raises:
        ModelError: no config.json, no weights, or no tokenizer.
    """
    adapter = is_adapter(folder)
    if not adapter and not (folder / "config.json").is_file():
        raise ModelError(f"{folder} has no config.json, so it is not a model folder. It holds: {_listing(folder)}")
    if not any(file.stat().st_size for file in _weights(folder)):
        raise ModelError(
            f"{folder} is a model folder without weights: no *.safetensors and no pytorch_model*.bin with content. "
            f"It holds: {_listing(folder)}. Copy or download the weights too."
        )
    if not adapter and not any((folder / name).is_file() for name in TOKENIZERS):
        raise ModelError(
            f"{folder} has no tokenizer: expected one of {', '.join(TOKENIZERS)}. Save it next to the model."
        )


def is_adapter(folder: Path) -> bool:
    """True for a folder that holds peft adapters and no whole model."""
    return (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file()


def looks_like_folder(path: str) -> bool:
    """True if the text can only be meant as a local path, not as a hub name (``name`` or ``owner/name``)."""
    return path.startswith((".", "/", "~")) or path.count("/") > 1 or path.endswith("/") or "\\" in path


def fingerprint(folder: Path) -> str:
    """Return 16 hex digits that change when the model does, without reading all of a large file.

    Small files count whole; of a file above 64 MiB the size, the first and last MiB (a safetensors file begins with
    its table of names and shapes) and 64 pieces of 64 KiB in between.
    """
    total = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.is_file() and (file.suffix in (".json", ".jinja", ".safetensors", ".bin", ".model", ".txt")):
            total.update(f"{file.name} {file.stat().st_size} ".encode())
            _add_pieces(total, file)
    return total.hexdigest()[:16]


def read_json(file: Path) -> dict[str, Any]:
    """Return the file's JSON object.

    Raises:
        ModelError: it is not one.
    """
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(table, dict):
        raise ModelError(f"{file} holds a {type(table).__name__}; expected a JSON object")
    return table


def _newest(checkpoints: Path) -> Path:
    """Return the model of the newest checkpoint whose files are all there."""
    reasons = []
    for folder in sorted((c for c in checkpoints.iterdir() if CHECKPOINT.fullmatch(c.name)), reverse=True):
        damage = find_damage(folder, digests=False)
        if damage is None and (folder / "model").is_dir():
            return folder / "model"
        reasons.append(f"{folder.name}: {damage or 'it holds no model/'}")
    found = "; ".join(reasons) or "there is none yet"
    raise ModelError(f"{checkpoints.parent} has no whole checkpoint to load a model from ({found})")


def _weights(folder: Path) -> list[Path]:
    return [file for pattern in WEIGHTS for file in folder.glob(pattern) if file.is_file()]


def _listing(folder: Path) -> str:
    names = sorted(child.name for child in folder.iterdir())
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") if names else "nothing"


def _add_pieces(total: Any, file: Path, *, whole: int = 64 << 20, edge: int = 1 << 20, piece: int = 64 << 10) -> None:
    size = file.stat().st_size
    with open(file, "rb") as stream:
        if size <= whole:
            total.update(stream.read())
            return
        offsets = [(0, edge), *((size * k // 65, piece) for k in range(1, 65)), (size - edge, edge)]
        for offset, length in offsets:
            stream.seek(offset)
            total.update(stream.read(length))
