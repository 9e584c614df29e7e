"""Loads the model and tokenizer that a recipe names, or says in one message why it cannot.

``toy`` is built on the spot (``toy:7`` from seed 7), ``smollm2`` comes from an installed package, a folder may be a
model, adapters, a checkpoint or a run directory, and anything else is a hub name. Everything that can be checked from
file names is checked before weights are read; weights that lack a tensor are refused instead of being made up.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from posttrain import config
from posttrain.errors import ConfigError, ModelError, did_you_mean
from posttrain.models.locate import (
    check_folder,
    fingerprint,
    is_adapter,
    looks_like_folder,
    read_json,
    resolve_model_path,
)
from posttrain.models.lora import merge_adapters
from posttrain.models.smollm2 import prepare_smollm2
from posttrain.models.tiny import build_toy

__all__ = ["Loaded", "choose_device", "load_model", "resolve_model_path"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
BUILT_IN = ("toy", "smollm2")
WINDOW_NAMES = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")

Announce = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """A model ready to generate and to train, with what the run must know about it."""

    model: PreTrainedModel
    """In evaluation mode, on its device, all weights with gradient."""
    tokenizer: PreTrainedTokenizerBase
    """Its tokenizer, with the recipe's chat template if one was given."""
    name: str
    """What the recipe called it; ``toy:SEED`` for the toy."""
    revision_digest: str
    """Changes when the weights or the tokenizer do: 16 hex digits, or the hub's commit."""
    window: int
    """The most tokens a row may have."""
    generation_eos_ids: tuple[int, ...]
    """Ids that end a completion, ascending; empty if the model names none."""


def load_model(settings: config.Model, *, seed: int, announce: Announce = lambda text: None) -> Loaded:
    """Load what ``settings.path`` names.

    Args:
        settings: path, device, number type and chat template; adapters are added by ``lora.add_lora``.
        seed: seed of the toy's weights; unused for every other model.
        announce: told before something slow starts.

    Raises:
        ModelError: the model cannot be found or loaded, or does not fit its tokenizer.
        ConfigError: the device or the chat template file does not exist.
    """
    device = choose_device(settings.device)
    template = _read_template(settings.chat_template)
    with _without_bars():
        loaded = _load_named(settings.path, DTYPES[settings.dtype], seed, announce)
    if template is not None:
        loaded.tokenizer.chat_template = template
    _check_vocabulary(loaded)
    with _explained(loaded.name, f"moving it to {device}"):
        model: Any = loaded.model
        model.to(device).eval()
    return loaded


def choose_device(wanted: str) -> torch.device:
    """Return the device by name; ``auto`` takes cuda, else mps, else cpu.

    Raises:
        ConfigError: no such device, or it is not on this machine.
    """
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wanted == "auto":
        return torch.device(next(name for name in ("cuda", "mps", "cpu") if there[name]))
    kind = wanted.partition(":")[0]
    if kind not in there:
        raise ConfigError(f"model.device is '{wanted}'.{did_you_mean(wanted, [*there, 'auto'])}")
    if not there[kind]:
        usable = ", ".join(name for name in there if there[name])
        raise ConfigError(
            f"model.device is '{wanted}', but torch sees no {kind} on this machine; usable: {usable}, auto"
        )
    with _explained(wanted, "choosing the device"):
        return torch.device(wanted)


def _load_named(path: str, dtype: torch.dtype, seed: int, announce: Announce) -> Loaded:
    """Dispatch on the kind of name."""
    word, _, number = path.partition(":")
    if word == "toy" and (not number or number.isdigit()) and path != "toy:":
        return _load_toy(int(number) if number else seed, dtype)
    if path == "smollm2":
        folder = prepare_smollm2(announce=announce)
        return _load_folder(folder, dtype, seed, announce, name="smollm2", origin="smollm2")
    if looks_like_folder(path) or Path(path).expanduser().exists():
        folder = resolve_model_path(path)
        check_folder(folder)
        return _load_folder(folder, dtype, seed, announce, name=path, origin=str(folder.resolve()))
    return _load_hub(path, dtype)


def _load_toy(seed: int, dtype: torch.dtype) -> Loaded:
    model, tokenizer = build_toy(seed=seed, dtype=dtype)
    digest = hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode())
    for name, tensor in model.state_dict().items():
        digest.update(name.encode() + tensor.double().numpy().tobytes())
    return _describe(model, tokenizer, f"toy:{seed}", digest.hexdigest()[:16])


def _load_folder(folder: Path, dtype: torch.dtype, seed: int, announce: Announce, *, name: str, origin: str) -> Loaded:
    if is_adapter(folder):
        return _load_adapters(folder, dtype, seed, announce, name=name)
    with _explained(name, "reading its tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    model = _read_weights(folder, name, dtype, local_files_only=True)
    return _describe(model, tokenizer, name, fingerprint(folder), origin=origin)


def _load_adapters(folder: Path, dtype: torch.dtype, seed: int, announce: Announce, *, name: str) -> Loaded:
    """Load the base that the adapters name and merge them into its weights."""
    base_name = read_json(folder / "adapter_config.json").get("base_model_name_or_path")
    if not base_name:
        raise ModelError(f"{folder} holds only adapters and its adapter_config.json does not name the base model")
    try:
        base = _load_named(str(base_name), dtype, seed, announce)
    except ModelError as error:
        raise ModelError(
            f"{folder} holds only adapters for '{base_name}', and that cannot be loaded: {error}"
        ) from error
    with _explained(name, f"putting its adapters on '{base_name}'"):
        merged = merge_adapters(base.model, folder)
    tokenizer = base.tokenizer
    if (folder / "tokenizer_config.json").is_file():
        with _explained(name, "reading its tokenizer"):
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    digest = hashlib.sha256((base.revision_digest + fingerprint(folder)).encode()).hexdigest()[:16]
    return _describe(merged, tokenizer, name, digest)


def _load_hub(name: str, dtype: torch.dtype) -> Loaded:
    near = did_you_mean(name, BUILT_IN)
    hint = near if near.startswith(" Did") else ""
    missing = f"There is no local folder '{name}', so it is taken for a hub name.{hint}"
    with _explained(name, "reading its tokenizer", missing):
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    model = _read_weights(name, name, dtype, missing=missing)
    return _describe(model, tokenizer, name, str(getattr(model.config, "_commit_hash", None) or "unknown"))


def _read_weights(
    source: Path | str, name: str, dtype: torch.dtype, *, local_files_only: bool = False, missing: str = ""
) -> PreTrainedModel:
    """Load the weights, and refuse those that lack a tensor of the architecture."""
    reader: Any = AutoModelForCausalLM
    with _explained(name, "reading its weights", missing):
        model, report = reader.from_pretrained(
            source,
            dtype=dtype,
            local_files_only=local_files_only,
            trust_remote_code=False,
            output_loading_info=True,
        )
    absent = sorted(report["missing_keys"])
    if absent:
        raise ModelError(
            f"model '{name}': its weights lack {len(absent)} tensors that {type(model).__name__} needs, for example "
            f"{absent[0]}. The files are torn, or they are of another architecture than config.json says."
        )
    loaded: PreTrainedModel = model
    return loaded


def _describe(model: Any, tokenizer: Any, name: str, digest: str, *, origin: str | None = None) -> Loaded:
    """Gather what the run must know. ``origin`` is what adapters saved later name as their base."""
    model.name_or_path = origin or name
    own = [tokenizer.eos_token_id, getattr(model.generation_config, "eos_token_id", None), model.config.eos_token_id]
    ends = {i for entry in own for i in (entry if isinstance(entry, list | tuple) else [entry]) if i is not None}
    return Loaded(
        model=model,
        tokenizer=tokenizer,
        name=name,
        revision_digest=digest,
        window=_window(model, tokenizer),
        generation_eos_ids=tuple(sorted(ends)),
    )


def _window(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the most tokens per row by the model's config, else by the tokenizer, else a million."""
    text_config = model.config.get_text_config()
    for name in WINDOW_NAMES:
        value = getattr(text_config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return min(int(tokenizer.model_max_length), 1 << 20)


def _check_vocabulary(loaded: Loaded) -> None:
    """Refuse a tokenizer that can produce an id the embedding has no row for."""
    embedding: Any = loaded.model.get_input_embeddings()
    rows = embedding.weight.shape[0]
    highest = max(loaded.tokenizer.get_vocab().values())
    if highest >= rows:
        raise ModelError(
            f"model '{loaded.name}': its tokenizer has ids up to {highest}, its embedding only {rows} rows. "
            "Use the tokenizer the model was saved with, or resize the embedding and save both."
        )


def _read_template(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"model.chat_template {path} cannot be read: {error}. Give the path of a jinja file."
        ) from error
    if not text.strip():
        raise ConfigError(f"model.chat_template {path} is empty; expected a jinja chat template")
    return text


@contextmanager
def _without_bars() -> Iterator[None]:
    """Keep transformers' progress bars off the user's screen, which has its own display."""
    bars: Any = transformers_logging
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()


@contextmanager
def _explained(name: str, action: str, hint: str = "") -> Iterator[None]:
    """Turn what the libraries raise for bad files, names and machines into one ModelError, chained."""
    kinds = (
        OSError,
        ValueError,
        RuntimeError,
        KeyError,
        TypeError,
        ImportError,
        SafetensorError,
        pickle.UnpicklingError,
    )
    try:
        yield
    except kinds as error:
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ModelError(f"model '{name}': {action} failed: {first}{' ' if hint else ''}{hint}") from error
