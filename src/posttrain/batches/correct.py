"""Allows for tokens that another policy sampled: sets each token's mismatch weight, once, and drops what is too far.

Consumes the samples of a whole batch with old log-probabilities and final advantages, produces the same samples with
``mismatch`` (which ``build.weigh`` multiplies into the policy part, there and nowhere else) and the step's numbers.
All statistics are over the whole batch, and a sequence is a rollout with all its segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from posttrain.correction import Correction
from posttrain.functional.mismatch import geometric_log_weights, inside, sequence_log_weights, truncated
from posttrain.functional.mismatch_report import report
from posttrain.functional.ratios import LIMIT
from posttrain.functional.rejection import opsm_keep
from posttrain.policy_gradient import TokenBook, open_book
from posttrain.types import Sample


def stand_in(samples: Sequence[Sample]) -> list[Sample]:
    """Let the rollout's log-probabilities stand in for old: the ratio is then pi / rollout (bypass)."""
    refuse_unknown(open_book(samples).read("rollout_logprobs"))
    return [replace(sample, old_logprobs=sample.rollout_logprobs) for sample in samples]


def correct(samples: Sequence[Sample], section: Correction) -> tuple[list[Sample], dict[str, float]]:
    """Return the samples with mismatch weights, masks and anchors as the section says, and numbers by metric name.

    Raises ValueError if a sample is weighed already, so that no gap can count twice, or if nobody knows with which
    probability a token was sampled.
    """
    if section.type == "none":
        return list(samples), {}
    if any(sample.mismatch is not None for sample in samples):
        raise ValueError("these samples have mismatch weights already: a second correction would count the gap twice")
    if not section.recomputes:
        return stand_in(samples), {}
    book = open_book(samples)
    old, rollout = book.read("old_logprobs"), book.read("rollout_logprobs")
    refuse_unknown(rollout)
    raw = level_log_weights(section, old - rollout, book)
    keep = kept(section, old, rollout, raw, book)
    weight = weights(section, raw)
    numbers = mismatch_numbers(old, rollout, book, keep, used=torch.where(keep, weight, torch.zeros_like(weight)))
    return applied(section, book, weight, keep), numbers


def refuse_unknown(rollout: Tensor) -> None:
    """Raise ValueError where the engine reported no log-probability."""
    if bool(rollout.isnan().any()):
        raise ValueError(
            f"correction needs the engine's log-probability of each token; {int(rollout.isnan().sum())} of "
            f"{len(rollout)} trained tokens have none"
        )


def level_log_weights(section: Correction, log_weights: Tensor, book: TokenBook) -> Tensor:
    """log w [N] by token, or that of the token's whole rollout."""
    if section.level == "token":
        return log_weights
    return sequence_log_weights(log_weights, book.rows, book.count)[book.rows]


def weights(section: Correction, raw: Tensor) -> Tensor:
    """The weight [N] of each token before anything is dropped."""
    if section.weight == "none":
        return torch.ones_like(raw)
    return truncated(raw, cap=section.cap) if section.weight == "truncate" else raw.clamp(-LIMIT, LIMIT).exp()


def kept(section: Correction, old: Tensor, rollout: Tensor, raw: Tensor, book: TokenBook) -> Tensor:
    """Tokens that no rule drops, bool [N]."""
    keep = torch.ones_like(raw, dtype=torch.bool)
    if section.weight == "mask":
        keep &= inside(raw, low=section.floor, high=section.cap)
    if section.geometric is not None:
        low, high = section.geometric
        keep &= inside(geometric_log_weights(old - rollout, book.rows, book.count), low=low, high=high)[book.rows]
    if section.opsm is not None:
        advantages = book.read("advantages")
        keep &= opsm_keep(advantages, rollout, old, book.rows, book.count, bound=section.opsm)[book.rows]
    return keep


def applied(section: Correction, book: TokenBook, weight: Tensor, keep: Tensor) -> list[Sample]:
    """The samples, weighed: dropped tokens weigh 0 (original) or leave the loss mask and so every count (kept)."""
    samples = book.written("mismatch", torch.where(keep, weight, torch.zeros_like(weight)))
    if section.type == "bypass":
        samples = [replace(sample, old_logprobs=sample.rollout_logprobs) for sample in samples]
    if section.denominator == "original":
        return samples
    stays = book.written("selected", keep, empty=False)
    masks = [np.asarray(sample.selected, dtype=bool) for sample in stays]
    return [replace(sample, loss_mask=mask) for sample, mask in zip(samples, masks, strict=True)]


def mismatch_numbers(old: Tensor, rollout: Tensor, book: TokenBook, keep: Tensor, *, used: Tensor) -> dict[str, float]:
    """The report under its metric names; ``used`` [N] are the weights that the loss applies."""
    found = report(old, rollout, book.rows, book.count, keep=keep)
    return {
        "mismatch/mean": found.mean_weight,
        "mismatch/max": found.largest_weight,
        "mismatch/used": float(used.mean()),
        "mismatch/k1": found.k1,
        "mismatch/k3": found.k3,
        "mismatch/chi_square": found.chi_square,
        "mismatch/chi_square_sequence": found.chi_square_sequence,
        "mismatch/effective_share": found.effective_share,
        "mismatch/far_share": found.far_share,
        "mismatch/correlation": found.correlation,
        "mismatch/dropped_share": found.dropped_share,
    }
