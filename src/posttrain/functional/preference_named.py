"""The pair losses against a reference by name, each with the options it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from posttrain.functional import preference_pairs as losses
from posttrain.functional.preference import Pairs

# fmt: off
PairLoss = Literal["sigmoid", "cdpo", "robust", "ipo_sum", "ipo_average", "length_normalised", "hinge", "apo_zero",
                   "apo_down", "nca", "bco_pair", "sppo", "exo"]
# fmt: on
RELATIVE: tuple[PairLoss, ...] = ("sigmoid", "cdpo", "robust", "hinge", "length_normalised")
"""Losses that stay meaningful without a reference: they see only how two answers differ. The others measure each
answer's own distance from the reference, or aim at a given one."""


def named_loss(pairs: Pairs, name: PairLoss, *, beta: float, flip: float = 0.1, smoothing: float = 1e-3) -> Tensor:
    """The loss ``name`` of each pair, [P]; ``beta`` is tau for the IPO losses.

    ``flip`` is read by cdpo and robust, ``smoothing`` by exo. Raises ValueError for an unknown name.
    """
    plain: dict[str, Callable[..., Tensor]] = {
        "sigmoid": losses.dpo,
        "length_normalised": losses.dpo_normalised,
        "hinge": losses.hinge,
        "apo_zero": losses.apo_zero,
        "apo_down": losses.apo_down,
        "nca": losses.nca,
        "bco_pair": losses.bco_pair,
        "sppo": losses.sppo,
    }
    if name in plain:
        return plain[name](pairs, beta=beta)
    if name in ("ipo_sum", "ipo_average"):
        return {"ipo_sum": losses.ipo_sum, "ipo_average": losses.ipo_average}[name](pairs, tau=beta)
    if name in ("cdpo", "robust"):
        return {"cdpo": losses.cdpo, "robust": losses.robust}[name](pairs, beta=beta, flip=flip)
    if name == "exo":
        return losses.exo(pairs, beta=beta, smoothing=smoothing)
    raise ValueError(f"no pair loss is called {name!r}")
