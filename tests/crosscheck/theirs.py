"""TRL's side: its own trainers on the same models, without a file, a network or a training step."""

import importlib
import os
import tempfile
import warnings
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from tests.crosscheck import material, ours

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    trl = pytest.importorskip(
        "trl", minversion="1.16", reason="TRL is not installed; to cross-check with it, install posttrain[crosscheck]"
    )
    datasets = importlib.import_module("datasets")
    utils = importlib.import_module("trl.trainer.utils")

ROW = {
    "prompt": "w5 w9 w11",
    "completion": " w4 w12 w2",
    "chosen": " w4 w12 w2",
    "rejected": " w33 w6 w2",
    "label": True,
}
"""Trainers want a data set to be built; none of these rows is ever used."""
SETTINGS: Mapping[str, Any] = {
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "report_to": "none",
    "save_strategy": "no",
    "disable_tqdm": True,
    "per_device_train_batch_size": 8,
}


def trainer(name: str, model: torch.nn.Module, columns: str, *, module: str = "trl", parts=None, **options) -> Any:
    """``name``Trainer of TRL with ``options`` in its config and further constructor ``parts``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        home = importlib.import_module(module)
        config = getattr(home, f"{name}Config")(**(SETTINGS | {"output_dir": tempfile.gettempdir()} | options))
        rows = {column: [ROW[column]] * 8 for column in columns.split()}
        built = getattr(home, f"{name}Trainer")(
            model=model,
            args=config,
            train_dataset=datasets.Dataset.from_dict(rows),
            processing_class=material.tokenizer(),
            **(parts or {}),
        )
    built.current_gradient_accumulation_steps = 1
    return built


def found(loss: torch.Tensor, model: torch.nn.Module) -> ours.Found:
    """The loss with its gradient by the model's parameters."""
    model.zero_grad()
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return ours.Found(loss=float(loss.detach()), gradients=gradients, stats={})


def assert_same(theirs: ours.Found, mine: ours.Found, tolerance: float = 1e-5) -> None:
    """Same loss, and the same gradient in every parameter, relative to the largest entry of either."""
    assert theirs.loss == pytest.approx(mine.loss, abs=tolerance, rel=tolerance)
    assert set(theirs.gradients) == set(mine.gradients)
    size = max(float(g.abs().max()) for g in theirs.gradients.values())
    assert size > 0
    gaps = {name: float((g - mine.gradients[name]).abs().max()) / size for name, g in theirs.gradients.items()}
    worst = max(gaps, key=gaps.__getitem__)
    assert gaps[worst] <= tolerance, f"{worst} differs by {gaps[worst]:.1e} of the largest entry"
