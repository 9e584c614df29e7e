"""beta-DPO, direct preference optimisation with a dynamic beta: https://arxiv.org/abs/2407.08639.

Assumes what DPO does, and pairs of uneven quality: a batch with small gaps (informative pairs) gets a small beta and so
a bolder update, one with large gaps (easy or noisy pairs) a large beta; outliers are left out.

    g_i  = gap of log ratios (not times beta);  mean, std: debiased exponential averages over training steps
    keep = a share 1 - drop_share of the pairs, drawn with weights exp(-((g_i - mean) / std)^2 / 2)
    beta = max(floor, beta_0 (1 + strength (mean of the kept g - mean))), no gradient
    L    = mean over the kept pairs of -log sigmoid(beta g)

All of it over the whole batch, at its start: one forward more than DPO. Nothing moves in evaluation. Defaults are those
of the paper's code (junkangwu/beta-DPO), where the gap is not multiplied by beta_0; see functional.preference_beta for
what its code gets wrong. A group with several negatives is one pair, the best against the worst.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from posttrain.config import Settings
from posttrain.functional.preference_beta import GapMoments, draw_kept, dynamic_beta, log_typicality
from posttrain.functional.preference_pairs import dpo
from posttrain.pairing import Comparing, build_pairs, find_answers, group_gaps, make_loss, pair_stats
from posttrain.types import Loss, Needs, Sample, TokenBatch

__all__ = ["BetaDPO", "Config"]

ROUNDING = 1e-3
"""Deviation of gaps, in nats, up to which they differ by rounding: at the start policy and reference are alike."""


class Config(Settings):
    """The paper's constants."""

    beta: float = Field(0.1, gt=0)
    """beta_0: the beta of a batch as typical as the past."""
    strength: float = Field(0.6, ge=0)
    """How far the gaps move beta; 0 leaves it at beta_0."""
    decay: float = Field(0.9, ge=0, lt=1)
    """Weight of the past in the averages."""
    drop_share: float = Field(0.2, ge=0, lt=1)
    """Share of the batch's pairs left out; 0 keeps all."""
    floor: float = Field(1e-3, gt=0)
    """Least beta."""
    seed: int = 0
    """Seed of the draw, mixed with the number of steps seen."""


class BetaDPO(Comparing):
    """DPO with a beta and a selection of its own for each batch; the averages are its state."""

    choice = "best_worst"

    def __init__(self, config: Config) -> None:
        self.config = config
        self.needs = Needs(
            engine=False,
            group_size=2,
            ref_logprobs=True,
            old_logprobs=True,
            streams={},
            separable=False,
            whole_groups=True,
            data="preferences",
        )
        self.start = float(np.log(2.0))
        """The preference loss where policy equals reference."""
        self._moments = GapMoments(decay=config.decay)
        self._beta, self._kept_share = config.beta, 1.0

    def refine(self, samples: Sequence[Sample]) -> list[Sample]:
        """Take the batch's gaps in, choose its beta, and take the pairs that are not drawn out of it."""
        config, gaps = self.config, group_gaps(samples)
        if not gaps:
            return list(samples)
        values = torch.tensor(list(gaps.values()), dtype=torch.float64)
        self._moments = self._moments.observe(values)
        varied = self._moments.deviation > ROUNDING
        weights = log_typicality(values, self._moments) if varied else torch.zeros_like(values)
        kept = draw_kept(weights, drop_share=config.drop_share, seed=config.seed * 1_000_003 + self._moments.updates)
        mean = float(values[kept].mean())
        limits = {"beta": config.beta, "strength": config.strength, "floor": config.floor}
        self._beta, self._kept_share = dynamic_beta(mean, self._moments, **limits), float(kept.double().mean())
        dropped = {group for group, stays in zip(gaps, kept.tolist(), strict=True) if not stays}
        return [replace(s, loss_mask=np.zeros_like(s.loss_mask)) if s.group in dropped else s for s in samples]

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """DPO at the batch's beta; changes no state."""
        pairs = build_pairs(find_answers(batch, logprobs), choice=self.choice)
        parts = {"preference": self.pair_weight(batch, pairs) * dpo(pairs, beta=self._beta).sum()}
        return make_loss(parts, pair_stats(pairs, beta=self._beta), logprobs)

    def numbers(self) -> dict[str, float]:
        """What this batch was trained with."""
        return {"beta": self._beta, "pairs/kept_share": self._kept_share, "gap/mean": self._moments.mean}

    def state(self) -> dict[str, float]:
        """The averages."""
        moments = self._moments
        return {"mean": moments.raw_mean, "deviation": moments.raw_deviation, "updates": float(moments.updates)}

    def restore(self, state: Mapping[str, float]) -> None:
        """Continue from the averages of a checkpoint."""
        self._moments = GapMoments(
            decay=self.config.decay,
            raw_mean=state["mean"],
            raw_deviation=state["deviation"],
            updates=int(state["updates"]),
        )
