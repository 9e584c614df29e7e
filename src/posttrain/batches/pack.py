"""Decides which samples share a forward pass: microbatches within a token budget, in the cheapest layout.

The loss is a weighted sum over tokens, so neither the split nor the layout nor the order can change it. Costs count
computed tokens (see `posttrain.models.layout`): a sample costs the tokens before its last trained one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from posttrain.models.images import refuse_images
from posttrain.models.layout import (
    computed_length,
    place_packed,
    place_padded,
    place_shared,
    same_prompt,
    shared_length,
)
from posttrain.types import Layout, Microbatch, Sample

COST_PER_TOKEN: dict[Layout, float] = {"padded": 1.0, "packed": 1.02, "shared": 1.02}
"""Relative time of one computed token; rows of segments pay for their gathers (measured on one CPU thread)."""


_UNBOUNDED = 2**62


def pack(samples: Sequence[Sample], *, token_budget: int, layout: Layout) -> list[Microbatch]:
    """Return microbatches that cover every sample once, each within ``token_budget`` computed tokens.

    Order, the same on every call:
      padded: longest first, ties in the given order; a microbatch is closed when the next row would not fit.
      packed: the given order; a microbatch is closed when the next sample would not fit.
      shared: families (equal prompts of one group) in the order of their first sample, longest sample first inside
        a family; a family that does not fit begins a new microbatch, and one above the budget is split into several
        blocks that repeat the prompt.
    A sample above the budget gets a microbatch of its own. Raises ValueError for a trained first token.
    """
    refuse_images(samples, layout)
    if token_budget < 1:
        raise ValueError(f"token_budget must be at least 1, got {token_budget}")
    if layout == "padded":
        return [place_padded(part) for part in _split_padded(samples, token_budget)]
    if layout == "packed":
        parts = _split([[sample] for sample in samples], token_budget)
        return [place_packed([sample for family in part for sample in family]) for part in parts]
    if layout == "shared":
        return [place_shared(part) for part in _split(_families(samples, token_budget), token_budget)]
    raise ValueError(f"layout must be padded, packed or shared, got {layout!r}")


def pack_auto(samples: Sequence[Sample], *, token_budget: int, allowed: Collection[Layout]) -> list[Microbatch]:
    """Return the microbatches of the allowed layout with the lowest estimated cost.

    Near-equal lengths and short prompts come out padded, ragged ones packed, long shared prompts shared.
    """
    if "padded" in allowed and any(sample.images for sample in samples):
        allowed = {"padded"}
    choices = [name for name in COST_PER_TOKEN if name in allowed]
    if not choices:
        raise ValueError(f"no layout to choose from: allowed is {sorted(allowed)}")
    packings = {name: pack(samples, token_budget=token_budget, layout=name) for name in choices}
    best = min(choices, key=lambda name: COST_PER_TOKEN[name] * sum(m.token_count for m in packings[name]))
    return packings[best]


def pack_whole_groups(samples: Sequence[Sample], *, token_budget: int, allowed: Collection[Layout]) -> list[Microbatch]:
    """Like `pack_auto`, for losses that compare rows of one group: a group lies in one microbatch, however large."""
    groups: dict[int, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.group, []).append(sample)
    microbatches: list[Microbatch] = []
    part: list[Sample] = []
    for group in groups.values():
        if part and sum(map(computed_length, [*part, *group])) > token_budget:
            microbatches += pack_auto(part, token_budget=_UNBOUNDED, allowed=allowed)
            part = []
        part += group
    return microbatches + (pack_auto(part, token_budget=_UNBOUNDED, allowed=allowed) if part else [])


def _split_padded(samples: Sequence[Sample], token_budget: int) -> Iterable[list[Sample]]:
    part: list[Sample] = []
    width = 0
    for sample in sorted(samples, key=computed_length, reverse=True):
        if part and (len(part) + 1) * max(width, 1) > token_budget:
            yield part
            part, width = [], 0
        width = max(width, computed_length(sample))
        part.append(sample)
    if part:
        yield part


def _split(families: Iterable[list[Sample]], token_budget: int) -> Iterable[list[list[Sample]]]:
    part: list[list[Sample]] = []
    used = 0
    for family in families:
        cost = _family_cost(family)
        if part and used + cost > token_budget:
            yield part
            part, used = [], 0
        part.append(family)
        used += cost
    if part:
        yield part


def _families(samples: Sequence[Sample], token_budget: int) -> Iterable[list[Sample]]:
    """Collect samples with equal prompts, and cut families that are above the budget."""
    found: dict[tuple[int, int, bytes], list[Sample]] = {}
    for sample in samples:
        found.setdefault(same_prompt(sample), []).append(sample)
    for family in found.values():
        piece: list[Sample] = []
        for sample in sorted(family, key=computed_length, reverse=True):
            if piece and _family_cost([*piece, sample]) > token_budget:
                yield piece
                piece = []
            piece.append(sample)
        yield piece


def _family_cost(family: Sequence[Sample]) -> int:
    prefix = shared_length(family[0])
    return prefix + sum(computed_length(sample) - prefix for sample in family)
