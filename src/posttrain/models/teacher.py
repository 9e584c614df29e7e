"""The frozen models that distillation imitates: who teaches which task, and what a teacher says to a student's tokens.

Teachers read the learner's own microbatches, through the same packing and scoring as its reference. For divergences
over the whole vocabulary a teacher gives hidden states only; both heads meet in tiles (`functional.distill_tiles`), so
memory is bounded by one tile of logits, forward and backward, and neither [N, vocabulary] ever exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posttrain.config import Teacher as Section
from posttrain.errors import ConfigError, DataError
from posttrain.functional.distill_tiles import Divergence, tiled_divergence
from posttrain.models.heads import TILE_BYTES, Head
from posttrain.models.rows import tensors
from posttrain.models.scoring import Scorer, causal_model
from posttrain.models.selftest import supported_layouts
from posttrain.types import Layout, Microbatch, Sample, Task

__all__ = ["Teacher", "Teachers", "responsible"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Teacher:
    """One frozen model and what it is responsible for."""

    section: Section
    """Its section of the recipe."""
    scorer: Scorer
    """Scores rows as the learner scores its own."""


def responsible(sections: Sequence[Section], task: Task | None) -> tuple[tuple[int, float], ...]:
    """Return (index of the teacher, weight) for a task; weights sum to one.

    Raises DataError if nobody is responsible, and ConfigError if several are and do not all say ``mix``.
    """
    found = [index for index, section in enumerate(sections) if _claims(section, task)]
    name = "a sample without a task" if task is None else f"task '{task.id}' (source '{task.source}')"
    if not found:
        known = "; ".join(f"{s.name}: {s.column} in {list(s.values)}" for s in sections)
        raise DataError(f"no teacher is responsible for {name}. Responsible are: {known}")
    if len(found) > 1 and not all(sections[index].mix for index in found):
        raise ConfigError(
            f"teachers {[sections[index].name for index in found]} are all responsible for {name}. A weighted sum of "
            "their divergences is the divergence from their normalised geometric mean, a blur wherever they "
            "disagree: route each task to one teacher with values, or set mix = true in each to have the sum"
        )
    total = sum(sections[index].weight for index in found)
    return tuple((index, sections[index].weight / total) for index in found)


def _claims(section: Section, task: Task | None) -> bool:
    if not section.values:
        return True
    if task is None:
        return False
    value = task.source if section.column == "source" else task.columns.get(section.column)
    return str(value) in section.values


class Teachers:
    """All teachers of a run, asked one microbatch at a time."""

    def __init__(
        self,
        sections: Sequence[Section],
        models: Sequence[Any],
        *,
        temperature: float = 1.0,
        tile_bytes: int = TILE_BYTES,
        digests: Sequence[str] = (),
        alignments: Mapping[int, Any] | None = None,
    ) -> None:
        """Freeze the models and test their layouts.

        ``temperature`` divides their logits as it does the student's; ``digests`` tell their weights apart;
        ``alignments`` are those `batches.alignment.Alignment` of teachers, by index, that read other tokens.
        """
        self.sections = tuple(sections)
        self.temperature = temperature or 1.0
        self.tile_bytes = tile_bytes
        self.digest = " ".join(digests)
        """Changes when a teacher does."""
        self.alignments = dict(alignments or {})
        self.layouts: frozenset[Layout] = frozenset({"padded", "packed", "shared"})
        """Layouts that give every teacher's own numbers."""
        self.layout_reason = ""
        """Why a layout is missing; empty if none is."""
        self._teachers = [self._frozen(section, model) for section, model in zip(sections, models, strict=True)]

    def _frozen(self, section: Section, model: Any) -> Teacher:
        model.eval().requires_grad_(False)
        support = supported_layouts(model)
        if not self.layouts <= support.layouts:
            self.layouts &= support.layouts
            self.layout_reason = f"teacher '{section.name}': {support.reason}"
        scorer = Scorer(
            model=causal_model(model),
            head=support.head,
            implementation=support.implementation,
            temperature=self.temperature,
            tile_bytes=self.tile_bytes,
        )
        return Teacher(section=section, scorer=scorer)

    def alignment(self, task: Task | None) -> Any | None:
        """Return how a task's teacher meets the student's text; None if it reads the student's tokens themselves."""
        return self.alignments.get(responsible(self.sections, task)[0][0]) if self.alignments else None

    def by_teacher(self, samples: Sequence[Sample]) -> list[list[Sample]]:
        """Sort samples by who teaches them, so that a microbatch passes through one teacher only."""
        parts: dict[tuple[tuple[int, float], ...], list[Sample]] = {}
        for sample in samples:
            parts.setdefault(responsible(self.sections, sample.task), []).append(sample)
        return list(parts.values())

    @torch.no_grad()
    def logprobs(self, microbatch: Microbatch) -> np.ndarray:
        """Return float64 [N]: what its teacher gives each trained token; a weighted sum where teachers are mixed."""
        total = np.zeros(len(microbatch.targets))
        for teacher, places, weights in self._shares(microbatch):
            rows = tensors(microbatch, _device(teacher))
            chosen = torch.as_tensor(places, device=rows.sources.device)
            part = replace(rows, sources=rows.sources[chosen], targets=rows.targets[chosen])
            total[places] += weights * teacher.scorer.score(part)[0].double().cpu().numpy()
        return total

    def divergence(self, microbatch: Microbatch, hidden: Tensor, student: Scorer, divergence: Divergence) -> Tensor:
        """Return ``divergence`` of every trained token from its teacher over the whole vocabulary, [N], with gradient.

        ``hidden`` [N, D] are the student's states at the trained tokens. Where teachers are mixed it is the weighted
        sum. Both distributions are at the sampling temperature.
        """
        total = hidden.new_zeros(len(hidden), dtype=torch.promote_types(hidden.dtype, torch.float32))
        for teacher, places, weights in self._shares(microbatch):
            chosen = torch.as_tensor(places, device=hidden.device)
            states = self._states(microbatch, teacher, places)
            values = tiled_divergence(
                lambda own, other: divergence(*_common(own, other.to(own.device))),
                hidden[chosen],
                _logits_of(student.head, self.temperature),
                states,
                _logits_of(teacher.scorer.head, self.temperature),
                tile=self._tile(student.head, hidden),
            )
            factor = torch.as_tensor(weights, dtype=values.dtype, device=values.device)
            total = total.index_add(0, chosen, factor * values)
        return total

    def _shares(self, microbatch: Microbatch) -> Iterator[tuple[Teacher, np.ndarray, np.ndarray]]:
        """Each teacher that is asked, the flat places of its tokens, and its weight there."""
        routes = [dict(responsible(self.sections, sample.task)) for sample in microbatch.samples]
        counts = [int(sample.loss_mask.sum()) for sample in microbatch.samples]
        for index, teacher in enumerate(self._teachers):
            weights = np.repeat([route.get(index, 0.0) for route in routes], counts)
            places = np.flatnonzero(weights)
            if len(places):
                yield teacher, places, weights[places]

    @torch.no_grad()
    def _states(self, microbatch: Microbatch, teacher: Teacher, places: np.ndarray) -> Tensor:
        rows = tensors(microbatch, _device(teacher))
        chosen = torch.as_tensor(places, device=rows.sources.device)
        return teacher.scorer.hidden(replace(rows, sources=rows.sources[chosen]), rows.plan)

    def _tile(self, head: Head, hidden: Tensor) -> int:
        """Tokens whose logits of both sides fit a tile."""
        with torch.no_grad():
            vocabulary = head.module(hidden[:1]).shape[-1] if head.weight is None else len(head.weight)
        return max(1, int(self.tile_bytes // (8 * vocabulary)))


def _device(teacher: Teacher) -> torch.device:
    return torch.device(next(teacher.scorer.model.parameters()).device)


def _logits_of(head: Head, temperature: float) -> Callable[[Tensor], Tensor]:
    """The head as a function of hidden states [n, D] to tempered logits [n, V], float32 or wider."""

    def logits(hidden: Tensor) -> Tensor:
        raw: Tensor = head.module(hidden)
        scaled = raw.to(torch.promote_types(raw.dtype, torch.float32)) * head.scale
        if head.softcap is not None:
            scaled = torch.tanh(scaled / head.softcap) * head.softcap
        return scaled / temperature

    return logits


def _common(own: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Cut rows that pad one embedding beyond the shared tokenizer off both."""
    width = min(own.shape[-1], other.shape[-1])
    return own[:, :width], other[:, :width]
