"""mDPO, preference optimisation for models that see: https://arxiv.org/abs/2406.11839, eq. 3 to 5.

Assumes pairs whose prompt has an image, and a reference. Plain DPO on them can be lowered without looking at the image:

    L = mean over pairs of -log sigmoid(beta g)                                       the answers, under the image
                           -log sigmoid(beta (r(chosen | image) - r(chosen | corrupted image)))
                           -log sigmoid(beta r(chosen | image) - delta)               an anchor,    r = log(pi / ref)

The corrupted image is a random crop of the true one, scaled back to its size so that it takes as many tokens. Image
tokens are context, in no sum. Defaults: beta 0.1, delta 0 and crops of 1 to 20 % of the area are the paper's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from pydantic import Field, model_validator
from torch import Tensor

from posttrain.config import Settings
from posttrain.errors import DataError
from posttrain.functional.preference_images import mdpo
from posttrain.models.images import cropped
from posttrain.pairing import Comparing, build_pairs, companions, find_answers, make_loss, pair_stats
from posttrain.types import Loss, Needs, Sample, TokenBatch

__all__ = ["MDPO", "Config"]


class Config(Settings):
    """The paper's constants."""

    beta: float = Field(0.1, gt=0)
    """How strongly the reference holds."""
    anchor_margin: float = 0.0
    """delta: by how much the chosen answer's reward is to exceed 0."""
    smallest_crop: float = Field(0.01, gt=0, le=1)
    """Least share of the image's area that a corrupted image shows."""
    largest_crop: float = Field(0.2, gt=0, le=1)
    """Greatest such share."""
    seed: int = 0
    """Seed of the crops, mixed with the group's position."""

    @model_validator(mode="after")
    def _ordered(self) -> Config:
        if self.smallest_crop > self.largest_crop:
            raise ValueError(f"smallest_crop {self.smallest_crop} is above largest_crop {self.largest_crop}")
        return self


class MDPO(Comparing):
    """DPO, its conditional twin on the image, and an anchor."""

    choice = "best_worst"

    def __init__(self, config: Config) -> None:
        self.config = config
        self.needs = Needs(
            engine=False,
            group_size=2,
            ref_logprobs=True,
            streams={},
            separable=False,
            whole_groups=True,
            data="preferences",
        )
        self.start = None
        """The loss where policy equals reference depends on the rows: 3 ln 2 with delta 0 and images."""

    def extend(self, samples: Sequence[Sample]) -> list[Sample]:
        """Add each chosen answer under a corrupted image, as a row without a reward."""
        return [*samples, *(self._corrupted(sample) for sample in samples if _chosen(sample))]

    def _corrupted(self, sample: Sample) -> Sample:
        if not sample.images:
            raise DataError(f"group {sample.group} has no image; mdpo compares images, for text alone use dpo")
        shares = (self.config.smallest_crop, self.config.largest_crop)
        images = cropped(sample.images, shares, np.random.default_rng((self.config.seed, sample.group)))
        return replace(sample, images=images, reward=float("nan"), rollout=-1 - sample.rollout)

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """Mean over the step's pairs of the three terms; without a corrupted row (in a check) the second is ln 2."""
        config, answers = self.config, find_answers(batch, logprobs)
        pairs = build_pairs(answers, choice=self.choice)
        own, ref = companions(answers, self.choice)
        terms = mdpo(pairs, own, ref, beta=config.beta, anchor_margin=config.anchor_margin)
        weight = self.pair_weight(batch, pairs)
        named = {"response": terms.response, "image": terms.image, "anchor": terms.anchor}
        parts = {name: weight * term.sum() for name, term in named.items()}
        return make_loss(parts, pair_stats(pairs, beta=config.beta), logprobs)


def _chosen(sample: Sample) -> bool:
    return bool(sample.loss_mask.any()) and float(sample.advantages[sample.loss_mask][0]) > 0
