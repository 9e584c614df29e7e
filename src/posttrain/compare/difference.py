"""The difference of two sides: terms, and where a stored batch allows, their effect token by token.

Over all tokens that train on either side, with c the gradient coefficients dL/dlogprob:

    cosine               <c_A, c_B> / (|c_A| |c_B|)       1: the same direction
    learning-rate ratio  |c_B| / |c_A|                    B moves the log-probabilities so many times as far as A

The ratio is what plain SGD sees. AdamW divides a constant factor out again; what stays of it there is where the
gradient clip begins, and the balance with terms that do not scale along (weight decay, a KL, an entropy bonus).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from posttrain.compare.effect import Effect, Token, effect_of, lacking
from posttrain.compare.sides import Side
from posttrain.compare.stored import StoredBatch
from posttrain.errors import PosttrainError

__all__ = ["Comparison", "Numbers", "View", "compare", "numbers_of", "union"]

SCHEMA = "posttrain.diff/1"
MOST = 8
"""Tokens named one by one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Numbers:
    """Two effects on the same tokens."""

    tokens: int
    """Tokens that train on either side."""
    cosine: float | None
    """Cosine of the coefficient vectors; None if one is zero."""
    ratio: float | None
    """Norm of B's coefficients over that of A's; None if A's are all zero."""
    opposite: float
    """Share of tokens that A raises and B lowers, or the other way round."""
    only_a: float
    """Share of tokens that only A moves."""
    only_b: float
    """Share of tokens that only B moves."""
    resized: float
    """Share of tokens moved the same way whose size differs more than twofold beyond the overall ratio."""
    most_changed: tuple[Token, ...]
    """Tokens whose share of the gradient differs most, first the largest difference."""


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """Both sides on one state of the batch."""

    state: Literal["first_step", "later_step"]
    """Ratio 1, or after optimizer steps on the batch."""
    effects: tuple[Effect, Effect]
    """A's and B's effect."""
    numbers: Numbers
    """Their comparison."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Everything that is shown."""

    a: Side
    """The first side."""
    b: Side
    """The second side."""
    terms: tuple[tuple[str, str, str], ...]
    """Term, A's words, B's words; ``none`` where a side has no such term."""
    batch: StoredBatch | None = None
    """The stored batch."""
    views: tuple[View, ...] = ()
    """First step, and later step if the batch knows one; empty if an effect cannot be computed."""
    not_compared: tuple[str, ...] = ()
    """Why the effects are not there."""

    @property
    def differing(self) -> list[tuple[str, str, str]]:
        """The terms that differ."""
        return [row for row in self.terms if row[1] != row[2]]

    def to_json(self) -> dict[str, Any]:
        """Plain values under stable names."""
        return {
            "schema": SCHEMA,
            "a": side_json(self.a),
            "b": side_json(self.b),
            "terms": [{"term": t, "a": a, "b": b, "differs": a != b} for t, a, b in self.terms],
            "batch": batch_json(self.batch),
            "not_compared": list(self.not_compared),
            "effects": {view.state: self._view_json(view) for view in self.views},
        }

    def _view_json(self, view: View) -> dict[str, Any]:
        numbers, effects = view.numbers, view.effects
        return {
            "tokens": numbers.tokens,
            "gradient_cosine": numbers.cosine,
            "learning_rate_ratio": numbers.ratio,
            "share": {name: getattr(numbers, name) for name in ("opposite", "only_a", "only_b", "resized")},
            "loss": {"a": effects[0].loss, "b": effects[1].loss},
            "notes": {"a": list(effects[0].notes), "b": list(effects[1].notes)},
            "most_changed": [self.token_json(view, token) for token in numbers.most_changed],
            "per_token": [self.token_json(view, token) for token in union(effects)],
        }

    def token_json(self, view: View, token: Token) -> dict[str, Any]:
        """One token with both advantages and coefficients; None where it does not train."""
        assert self.batch is not None
        position, index, segment, place = token
        row: dict[str, Any] = {"group": position, "rollout": index, "segment": segment, "place": place}
        row["piece"] = self.batch.pieces.get((position, index, place)) if segment == 0 else None
        for name, effect in zip("ab", view.effects, strict=True):
            row[f"advantage_{name}"] = effect.advantages.get(token)
            row[f"coefficient_{name}"] = effect.coefficients.get(token)
        return row


def compare(a: Side, b: Side, batch: StoredBatch | None) -> Comparison:
    """Compare the terms of two sides, and their effect on the batch if both can have one."""
    left, right = a.terms(), b.terms()
    idle = (a.idle() - right.keys()) | (b.idle() - left.keys())
    names = [name for name in merged(list(left), list(right)) if name not in idle]
    terms = tuple((name, left.get(name, "none"), right.get(name, "none")) for name in names)
    if batch is None:
        return Comparison(a=a, b=b, terms=terms)
    reasons = tuple(f"{side.label}: {why}" for side in (a, b) if (why := lacking(side, batch)) is not None)
    views: list[View] = []
    try:
        if not reasons:
            views = views_of(a, b, batch)
    except PosttrainError as error:
        reasons = (str(error),)
    return Comparison(a=a, b=b, terms=terms, batch=batch, views=tuple(views), not_compared=reasons)


def views_of(a: Side, b: Side, batch: StoredBatch) -> list[View]:
    """Both effects on each state the batch knows; PosttrainError where an algorithm refuses the batch."""
    states: list[tuple[Literal["first_step", "later_step"], StoredBatch]] = [("first_step", batch.first_step())]
    if batch.moved:
        states.append(("later_step", batch))
    views = []
    for state, seen in states:
        effects = effect_of(a, seen), effect_of(b, seen)
        views.append(View(state=state, effects=effects, numbers=numbers_of(*effects)))
    return views


def merged(left: Sequence[str], right: Sequence[str]) -> list[str]:
    """Both lists in one, each name once; a name that only ``right`` has comes after the one before it there."""
    names = list(left)
    for place, name in enumerate(right):
        if name not in names:
            after = names.index(right[place - 1]) + 1 if place else 0
            names.insert(after, name)
    return names


def union(effects: tuple[Effect, Effect]) -> list[Token]:
    """The tokens that train on either side, in order."""
    return sorted(effects[0].coefficients.keys() | effects[1].coefficients.keys())


def numbers_of(a: Effect, b: Effect) -> Numbers:
    """Compare two effects over the tokens that train on either side."""
    tokens = union((a, b))
    left = np.array([a.coefficients.get(token, 0.0) for token in tokens])
    right = np.array([b.coefficients.get(token, 0.0) for token in tokens])
    norms = float(np.linalg.norm(left)), float(np.linalg.norm(right))
    ratio = norms[1] / norms[0] if norms[0] else None
    moved = (left != 0) & (right != 0)
    same = moved & (np.sign(left) == np.sign(right))
    shares = np.abs(left) / (norms[0] or 1.0), np.abs(right) / (norms[1] or 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(same, np.abs(np.log2(shares[1] / shares[0])), 0.0)
    count = max(len(tokens), 1)
    distance = np.abs(right / (norms[1] or 1.0) - left / (norms[0] or 1.0))
    order = [place for place in np.argsort(-distance, kind="stable")[:MOST] if distance[place] > 1e-9]
    return Numbers(
        tokens=len(tokens),
        cosine=cosine(left, right, norms),
        ratio=ratio,
        opposite=float((moved & ~same).sum() / count),
        only_a=float(((left != 0) & (right == 0)).sum() / count),
        only_b=float(((left == 0) & (right != 0)).sum() / count),
        resized=float((factor > 1).sum() / count),
        most_changed=tuple(tokens[place] for place in order),
    )


def cosine(left: np.ndarray, right: np.ndarray, norms: tuple[float, float]) -> float | None:
    """Cosine of two vectors with these norms, or None if one is zero."""
    if not all(norms):
        return None
    return float(max(-1.0, min(1.0, math.fsum(left * right) / (norms[0] * norms[1]))))


def side_json(side: Side) -> dict[str, Any]:
    """A side as plain values."""
    preset = side.preset
    return {
        "label": side.label,
        "kind": side.kind,
        "algorithm": side.plug.type,
        "options": {key: value for key, value in side.plug.options.items() if key != "preset"},
        "preset": None
        if preset is None
        else {"name": preset.name, "version": preset.version, "source": preset.source, "notes": list(preset.notes)},
    }


def batch_json(batch: StoredBatch | None) -> Mapping[str, Any] | None:
    """The batch as plain values."""
    if batch is None:
        return None
    rollouts = sum(len(group.rollouts) for group in batch.groups)
    return {"label": batch.label, "groups": len(batch.groups), "rollouts": rollouts, "notes": list(batch.notes)}
