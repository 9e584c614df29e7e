"""Trains the weights in this process: forward and backward over microbatches, AdamW, full or through LoRA.

The model object may be shared with an engine: its attention implementation is set before each forward and nothing
else about it changes between calls. Dropout is off, that of LoRA's own excepted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from posttrain.config import Settings
from posttrain.errors import ConfigError, ModelError, RecordError
from posttrain.models.checkpointing import checkpointed_layers, enable_checkpointing
from posttrain.models.collision import tiled_collision
from posttrain.models.heads import KEEP_BYTES, TILE_BYTES
from posttrain.models.optimizer import (
    Schedule,
    build_adamw,
    clip_gradients,
    global_norm,
    optimizer_tensors,
    restore_optimizer,
    scheduled_rate,
)
from posttrain.models.rows import RowTensors, tensors, token_batch
from posttrain.models.scoring import Scorer, causal_model
from posttrain.models.selftest import Support, supported_layouts
from posttrain.models.storage import has_adapter, load_weights, save_weights
from posttrain.models.teacher import Teachers
from posttrain.models.values import Critic
from posttrain.protocols import LossFunction, NamedTensors
from posttrain.types import Layout, Microbatch, Needs, Stat, StepStats

__all__ = ["Config", "LocalLearner"]

CRITIC_OPTIMIZER = "critic_optimizer.safetensors"


class Config(Settings):
    """How the weights move."""

    learning_rate: float = Field(1e-6, gt=0)
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of AdamW's first and second moment."""
    eps: float = Field(1e-8, gt=0)
    """Added to the root of the second moment."""
    weight_decay: float = Field(0.0, ge=0)
    """Decay of matrices; norms, biases and embeddings never decay."""
    schedule: Schedule = "constant"
    """How the rate goes on after the warm-up: constant, linear or cosine to zero at the end of the run."""
    warmup_steps: int = Field(0, ge=0)
    """Optimizer steps over which the rate rises."""
    max_grad_norm: float | None = Field(1.0, gt=0)
    """Global gradient norm above which the gradient is scaled down; none switches it off."""
    tile_bytes: int = Field(TILE_BYTES, gt=0)
    """Size of one tile of logits."""
    keep_bytes: int = Field(KEEP_BYTES, ge=0)
    """Most bytes of probabilities kept from forward to backward; beyond it they are recomputed."""
    gradient_checkpointing: bool = False
    """Recompute each layer in the backward instead of keeping its activations: less memory, a third more time."""


class LocalLearner:
    """Owns weights, optimizer and schedule; see `posttrain.protocols.Learner`."""

    def __init__(
        self,
        config: Config,
        model: Any,
        temperature: float,
        total_steps: int,
        needs: Needs,
        reference_model: Any | None = None,
        seed: int = 0,
        critic: Critic | None = None,
        teachers: Teachers | None = None,
    ) -> None:
        """Test the model's layouts and set up the optimizer.

        ``model`` is a transformers causal language model, or a peft model whose adapters train. ``temperature``
        divides the logits as in sampling. ``seed`` matters only to LoRA dropout. ``critic`` gives an algorithm its
        values and trains with the policy. ``teachers`` give it divergences. Raises ModelError or ConfigError.
        """
        if needs.values and critic is None:
            raise ConfigError("the algorithm needs values, and the learner was given no critic; choose one without")
        if needs.divergence is not None and teachers is None:
            raise ConfigError("the algorithm needs a divergence from a teacher, and the learner was given none")
        self.config, self.model, self.needs, self.seed = config, model, needs, seed
        self.teachers = teachers
        """Who is imitated; None without distillation."""
        self.temperature = temperature
        """Divides the logits of every log-probability."""
        self.total_steps = total_steps
        self.calls = 0
        """Calls of `step`, skipped ones included; the schedule goes by them."""
        self._version = 0
        self._microbatches = 0
        self._reference_model = reference_model
        model.eval()
        support = supported_layouts(model)
        self.layouts: frozenset[Layout] = support.layouts
        self.layout_reason: str = support.reason
        self._scorer = Scorer(
            model=causal_model(model),
            head=support.head,
            implementation=support.implementation,
            temperature=temperature,
            tile_bytes=config.tile_bytes,
            keep_bytes=config.keep_bytes,
        )
        self._reference = self._build_reference()
        decay = {"betas": config.betas, "eps": config.eps, "weight_decay": config.weight_decay}
        self._optimizer = build_adamw(model, **decay)  # type: ignore[arg-type]
        self._critic = critic
        self._critic_optimizer = None if critic is None else build_adamw(critic.module, **decay)  # type: ignore[arg-type]
        if critic is not None and critic.support is not None:
            self._narrow_layouts("critic", critic.support)
        if teachers is not None and not self.layouts <= teachers.layouts:
            self.layouts &= teachers.layouts
            self.layout_reason = teachers.layout_reason
        self._layers = checkpointed_layers(model) if config.gradient_checkpointing else []
        if config.gradient_checkpointing:
            enable_checkpointing(causal_model(model))
        self._dropouts = [m for n, m in model.named_modules() if "lora_dropout" in n and getattr(m, "p", 0.0) > 0]

    @property
    def version(self) -> int:
        """Number of optimizer steps that changed the weights."""
        return self._version

    def logprobs(self, microbatch: Microbatch, *, reference: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return float64 (log-probability, entropy) [N] of the trained tokens, without gradient.

        The reference is the model without its adapters, or the reference model; ConfigError if there is neither.
        """
        self._check_layout(microbatch)
        with torch.no_grad():
            rows = tensors(microbatch, self._device)
            if not reference:
                found = self._scorer.score(rows)
            elif has_adapter(self.model):
                with self.model.disable_adapter():
                    found = self._scorer.score(rows)
            elif self._reference is not None:
                found = self._reference.score(tensors(microbatch, next(self._reference.model.parameters()).device))
            else:
                raise ConfigError(
                    "reference log-probabilities are asked for, but there is neither LoRA nor a reference model"
                )
        return found[0].double().cpu().numpy(), found[1].double().cpu().numpy()

    def forward_backward(self, microbatch: Microbatch, loss: LossFunction) -> Mapping[str, Stat]:
        """Add the gradient of ``loss`` over the microbatch's trained tokens; return the loss's stats."""
        self._check_layout(microbatch)
        with torch.enable_grad(), self._training():
            hidden, logprobs, entropy, values = self._forward(tensors(microbatch, self._device))
            batch = token_batch(microbatch, dtype=logprobs.dtype, device=self._device)
            if self.teachers is not None and self.needs.divergence is not None:
                divergence = self.teachers.divergence(microbatch, hidden, self._scorer, self.needs.divergence)
                batch = replace(batch, divergence=divergence)
            if self.needs.collision:
                collision = tiled_collision(
                    hidden, self._scorer.head, temperature=self.temperature, tile_bytes=self.config.tile_bytes
                )
                batch = replace(batch, log_collision=collision)
            result = loss(batch, logprobs, entropy, values)
            if result.total.requires_grad:
                torch.autograd.backward(result.total)
        return result.stats

    def values(self, microbatch: Microbatch) -> np.ndarray:
        """Return float64 [N]: the critic's value of the state before each trained token, without gradient."""
        self._check_layout(microbatch)
        if self._critic is None:
            raise ConfigError("values are asked for, but the learner was given no critic")
        with torch.no_grad():
            rows = tensors(microbatch, self._device)
            if not len(rows.sources):
                return np.zeros(0)
            hidden = self._scorer.hidden(rows, rows.plan) if self._critic.own is None else None
            return self._critic.values(rows, hidden).double().cpu().numpy()

    def step(self) -> StepStats:
        """Clip, update, clear the gradient, advance the schedule.

        A gradient that is not finite is cleared and changes nothing but the schedule; without any gradient the
        weights and their version stay too. Policy and critic are clipped each by its own norm.
        """
        optimizers = [(self._optimizer, self._rate()), (self._critic_optimizer, self._critic_rate())]
        gradients = [[] if o is None else _gradients(o) for o, _ in optimizers]
        norms = [global_norm(part) for part in gradients]
        finite = all(map(math.isfinite, norms))
        self.calls += 1
        self._microbatches = 0
        for (optimizer, rate), part, norm in zip(optimizers, gradients, norms, strict=True):
            if optimizer is not None and part and finite:
                clip_gradients(part, norm, self.config.max_grad_norm)
                for group in optimizer.param_groups:
                    group["lr"] = rate
                optimizer.step()
        self._version += finite and any(gradients)
        self.clear_gradient()
        return StepStats(
            grad_norm=math.hypot(*norms), learning_rate=optimizers[0][1], skipped=not finite, version=self._version
        )

    def clear_gradient(self) -> None:
        """Forget every gradient."""
        for _, parameter in self.trained_tensors():
            parameter.grad = None

    def trained_tensors(self) -> NamedTensors:
        """Return every tensor that has a gradient: the policy's weights, then the critic's own."""
        own = [] if self._critic is None else self._critic.module.named_parameters(prefix="critic")
        return [*self.named_tensors(), *own]

    def named_tensors(self) -> NamedTensors:
        """Return name and parameter in the model's own order; tied weights come once."""
        return [(name, parameter) for name, parameter in self.model.named_parameters()]

    def save(self, folder: Path) -> None:
        """Write the standalone model, the adapter if any, the optimizer's tensors and the counters."""
        folder.mkdir(parents=True, exist_ok=True)
        save_weights(self.model, folder)
        save_file(optimizer_tensors(self._optimizer, self._names()), folder / "optimizer.safetensors")
        if self._critic is not None and self._critic_optimizer is not None:
            self._critic.save(folder)
            save_file(optimizer_tensors(self._critic_optimizer, self._names()), folder / CRITIC_OPTIMIZER)
        state = {"calls": self.calls, "version": self._version, "total_steps": self.total_steps}
        state |= self.config.model_dump(mode="json", include={"learning_rate", "schedule", "warmup_steps"})
        (folder / "learner.json").write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")

    def load(self, folder: Path) -> None:
        """Take over what `save` wrote; training then continues bit for bit. Raises RecordError if it does not fit."""
        try:
            state = json.loads((folder / "learner.json").read_text(encoding="utf-8"))
            calls, version = int(state["calls"]), int(state["version"])
            moments = load_file(folder / "optimizer.safetensors")
            load_weights(self.model, folder)
            if self._critic is not None and self._critic_optimizer is not None:
                self._critic.load(folder)
                restore_optimizer(self._critic_optimizer, self._names(), load_file(folder / CRITIC_OPTIMIZER))
        except (OSError, ValueError, KeyError, TypeError, SafetensorError, ModelError) as error:
            raise RecordError(
                f"learner state in {folder} cannot be read: {error!r}. Use an older checkpoint"
            ) from error
        restore_optimizer(self._optimizer, self._names(), moments)
        self.clear_gradient()
        self.calls, self._version, self._microbatches = calls, version, 0

    @property
    def _device(self) -> torch.device:
        return torch.device(next(self.model.parameters()).device)

    @property
    def _frozen(self) -> int:
        """First optimizer steps in which only the critic trains."""
        return 0 if self._critic is None else self._critic.warmup_steps

    def _forward(self, rows: RowTensors) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Return hidden states [N, hidden size] and (log-probabilities, entropy, values) [N] of the trained tokens.

        While the critic warms up the policy's part has no gradient. An algorithm of scores has no policy: its
        log-probabilities are not computed (zeros), and there is no entropy.
        """
        with torch.set_grad_enabled(self.calls >= self._frozen):
            hidden = self._scorer.hidden(rows, rows.plan)
            if not self.needs.scores or not len(rows.sources):
                logprobs, entropy = self._scorer.read(hidden, rows.targets, entropy_gradient=self.needs.entropy)
        if self._critic is None or not len(rows.sources):
            return hidden, logprobs, entropy, None if self._critic is None else logprobs.clone()
        values = self._critic.values(rows, hidden)
        return (
            (hidden, torch.zeros_like(values), None, values)
            if self.needs.scores
            else (hidden, logprobs, entropy, values)
        )

    def _names(self) -> dict[int, str]:
        return {id(parameter): name for name, parameter in self.trained_tensors()}

    def _rate(self) -> float:
        return self._scheduled(self.config.learning_rate, max(0, self.calls - self._frozen), self._frozen)

    def _critic_rate(self) -> float:
        return 0.0 if self._critic is None else self._scheduled(self._critic.learning_rate, self.calls, 0)

    def _scheduled(self, peak: float, step: int, missed: int) -> float:
        total, warmup = max(1, self.total_steps - missed), self.config.warmup_steps
        return scheduled_rate(peak, step, total=total, warmup=warmup, schedule=self.config.schedule)

    def _build_reference(self) -> Scorer | None:
        """Return a scorer of the reference model; its own self-test may narrow the layouts."""
        if self._reference_model is None:
            return None
        self._reference_model.eval().requires_grad_(False)
        support = supported_layouts(self._reference_model)
        self._narrow_layouts("reference model", support)
        return Scorer(
            model=causal_model(self._reference_model),
            head=support.head,
            implementation=support.implementation,
            temperature=self._scorer.temperature,
            tile_bytes=self.config.tile_bytes,
        )

    def _narrow_layouts(self, who: str, support: Support) -> None:
        """Leave out the layouts that another model of the update does not take."""
        if not self.layouts <= support.layouts:
            self.layouts &= support.layouts
            self.layout_reason = f"{who}: {support.reason}"

    def _check_layout(self, microbatch: Microbatch) -> None:
        if microbatch.layout not in self.layouts:
            raise ConfigError(
                f"layout '{microbatch.layout}' gives other numbers than this model ({self.layout_reason}); "
                f"use one of {', '.join(sorted(self.layouts))}"
            )

    @contextmanager
    def without_dropout(self) -> Iterator[None]:
        """Train as LoRA dropout 0 would for as long as the block runs, so that equal batches have equal gradients."""
        dropouts, self._dropouts = self._dropouts, []
        try:
            yield
        finally:
            self._dropouts = dropouts

    @contextmanager
    def _training(self) -> Iterator[None]:
        """Turn on what differs from evaluation: recomputed layers, and LoRA dropout from a seed of its own.

        The seed counts the microbatches since the gradient was last empty, so a gradient that was computed and
        thrown away before the first step (a check) changes nothing.
        """
        if self._dropouts and all(parameter.grad is None for parameter in self.model.parameters()):
            self._microbatches = 0
        switched = [*self._layers, *self._dropouts]
        for module in switched:
            module.training = True
        devices = [self._device] if self._device.type == "cuda" else []
        try:
            with torch.random.fork_rng(devices=devices, enabled=bool(self._dropouts)):
                if self._dropouts:
                    words = np.random.SeedSequence((self.seed, self.calls, self._microbatches)).generate_state(2)
                    torch.manual_seed(int(words[0]) << 32 | int(words[1]))
                self._microbatches += 1
                yield
        finally:
            for module in switched:
                module.training = False


def _gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
