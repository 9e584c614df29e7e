"""Low-rank adapters: freeze the weights W and train A, B in W + (alpha / rank) B A.

Source: Hu et al. 2021, LoRA, arXiv 2106.09685; through peft. B starts at zero, so the model with fresh adapters
computes what it computed before.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import torch
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from posttrain import config
from posttrain.errors import ConfigError, did_you_mean

__all__ = ["Trainable", "add_lora", "merge_adapters", "save_adapters", "trainable_summary"]

ALL_LINEAR = "all-linear"


@dataclass(frozen=True, kw_only=True, slots=True)
class Trainable:
    """How much of a model trains."""

    trainable: int
    """Parameters with gradient; tied ones count once."""
    total: int
    """All parameters."""

    @property
    def share(self) -> float:
        """Trainable parameters as a share of all, 0 to 1."""
        return self.trainable / self.total if self.total else 0.0

    def __str__(self) -> str:
        return f"{self.trainable:,} of {self.total:,} parameters train ({self.share:.2%})"


def add_lora(model: PreTrainedModel, settings: config.Lora, seed: int) -> peft.PeftModel:
    """Return the model wrapped with fresh adapters; only they train. The same seed gives the same adapters.

    Args:
        model: a causal language model; its own weights are frozen in place.
        settings: rank, alpha, dropout and targets.
        seed: seed of the adapters' first values; torch's own generators are left as they were.

    Raises:
        ConfigError: a target names no linear layer of the model.
    """
    targets = ALL_LINEAR if settings.targets == ALL_LINEAR else _check_targets(model, settings.targets)
    wanted = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]
        lora_dropout=settings.dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
    mode = model.training
    with _seeded(seed), _quiet():
        adapted = peft.get_peft_model(model, wanted)
    return adapted.train(mode)


def merge_adapters(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Return the model with the adapters of a peft folder added into its weights, which all train again."""
    with _quiet():
        adapted: Any = peft.PeftModel.from_pretrained(model, str(folder))
    merged: PreTrainedModel = adapted.merge_and_unload()
    merged.requires_grad_(True)
    return merged


def save_adapters(model: peft.PeftModel, folder: Path) -> None:
    """Write only the adapters; the embedding is never trained, so peft need not look up the base for it."""
    model.save_pretrained(str(folder), save_embedding_layers=False)


def trainable_summary(model: torch.nn.Module) -> Trainable:
    """Count the parameters that train."""
    parameters = list(model.parameters())
    return Trainable(
        trainable=sum(p.numel() for p in parameters if p.requires_grad), total=sum(p.numel() for p in parameters)
    )


def _check_targets(model: PreTrainedModel, targets: str | tuple[str, ...]) -> list[str]:
    """Return the target names if each is the last part of a linear layer's name, or the whole of it."""
    names = [targets] if isinstance(targets, str) else list(targets)
    linear = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear | Conv1D)]
    for target in names:
        if not any(name == target or name.endswith(f".{target}") for name in linear):
            leaves = {name.rpartition(".")[2] for name in linear}
            raise ConfigError(
                f"model.lora.targets: no linear layer of this model is called '{target}'."
                f"{did_you_mean(target, [*leaves, ALL_LINEAR])}"
            )
    if not names:
        raise ConfigError(f"model.lora.targets is empty; name at least one layer, or '{ALL_LINEAR}'")
    return names


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out transformers' remark that peft asks for an attribute by its old name."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"transformers\.")
        yield


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Draw from a fresh seed inside, and put the generators back afterwards."""
    with torch.random.fork_rng(devices=list(range(torch.cuda.device_count()))):
        torch.manual_seed(seed)
        yield
