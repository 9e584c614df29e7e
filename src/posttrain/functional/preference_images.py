"""mDPO: preference learning on images, which plain DPO lets a model ignore (arXiv 2406.11839).

Three terms per pair: the answers compared under the image, the chosen answer compared under the image and
under a corrupted one, and an anchor that keeps the chosen answer from becoming less likely.
Image tokens are context: they are in no sum. The corrupted image must give as many image tokens as the true one.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.functional.preference import Pairs
from posttrain.functional.preference_pairs import dpo


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ImageTerms:
    """The three terms of mDPO, [P] each."""

    response: Tensor
    """Chosen against rejected answer, same image: DPO."""
    image: Tensor
    """Chosen answer under the true against the corrupted image."""
    anchor: Tensor
    """Chosen answer against the reference."""

    @property
    def total(self) -> Tensor:
        """Their sum, [P]: the paper's loss."""
        return self.response + self.image + self.anchor


def mdpo(
    pairs: Pairs, corrupted: Tensor, ref_corrupted: Tensor, *, beta: float = 0.1, anchor_margin: float = 0.0
) -> ImageTerms:
    """Return mDPO's three terms, [P] each; arXiv 2406.11839.

    ``corrupted`` and ``ref_corrupted`` [P] are the summed log-probabilities of the CHOSEN answers under the corrupted
    image, by policy and reference. ``anchor_margin`` is delta.
    """
    chosen = pairs.chosen_log_ratio
    return ImageTerms(
        response=dpo(pairs, beta=beta),
        image=-logsigmoid(beta * (chosen - (corrupted - ref_corrupted))),
        anchor=-logsigmoid(beta * chosen - anchor_margin),
    )
