"""Draws a comparison: each token's gradient on both sides, and each rollout's advantage.

Needs matplotlib, the extra ``[figures]``; the ending of the file's name decides the format (png, svg, pdf).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from posttrain.compare.difference import Comparison, union
from posttrain.errors import ConfigError

__all__ = ["FORMATS", "draw", "refuse_figure"]

FORMATS = (".png", ".svg", ".pdf")


def refuse_figure(path: Path) -> None:
    """Raise ConfigError if no figure could be written there, before anything is computed."""
    if path.suffix not in FORMATS:
        raise ConfigError(f"--figure {path}: the name must end in one of {', '.join(FORMATS)}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--figure {path}: the folder {path.absolute().parent} does not exist")
    _figure_class()


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("--figure needs matplotlib: pip install 'posttrain[figures]'") from error
    return Figure


def draw(found: Comparison, path: Path) -> None:
    """Write the figure; ConfigError if the comparison has no numbers."""
    if found.effects is None or found.numbers is None:
        raise ConfigError(f"--figure: there is nothing to draw: {'; '.join(found.not_compared) or 'no batch'}")
    figure = _figure_class()(figsize=(11, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    _gradients(left, found)
    _advantages(right, found)
    numbers = found.numbers
    cosine = "-" if numbers.cosine is None else f"{numbers.cosine:.3f}"
    ratio = "-" if numbers.ratio is None else f"{numbers.ratio:.3g}"
    figure.suptitle(f"{found.a.label} and {found.b.label}: gradient cosine {cosine}, size of B over A {ratio}")
    figure.savefig(path, dpi=150, metadata={"Software": None} if path.suffix == ".png" else None)


def _gradients(axes: Any, found: Comparison) -> None:
    """One point per token, each side's gradient scaled to length one, so that only the direction is seen."""
    assert found.effects is not None
    a, b = (
        np.array([effect.coefficients.get(token, 0.0) for token in union(found.effects)]) for effect in found.effects
    )
    x, y = (-values / (np.linalg.norm(values) or 1.0) for values in (a, b))
    opposite = x * y < 0
    for where, colour, label in ((~opposite, "tab:blue", "same direction"), (opposite, "tab:red", "opposite")):
        axes.scatter(x[where], y[where], s=14, alpha=0.6, color=colour, label=f"{label} ({int(where.sum())} tokens)")
    reach = float(max(np.abs(x).max(initial=0), np.abs(y).max(initial=0))) * 1.1 or 1.0
    axes.plot([-reach, reach], [-reach, reach], color="grey", linewidth=0.8)
    axes.axhline(0, color="lightgrey", linewidth=0.8, zorder=0)
    axes.axvline(0, color="lightgrey", linewidth=0.8, zorder=0)
    axes.set_xlabel(f"push on the token, {found.a.label} (share of its gradient)")
    axes.set_ylabel(f"push on the token, {found.b.label}")
    axes.set_title("each token's gradient: above 0 it becomes likelier")
    axes.legend(loc="upper left", fontsize=8)


def _advantages(axes: Any, found: Comparison) -> None:
    """Mean advantage of each rollout, group after group."""
    assert found.effects is not None
    keys = sorted({token[:2] for token in union(found.effects)})
    for effect, side, marker in zip(found.effects, (found.a, found.b), "ox", strict=True):
        means = [
            np.mean([value for token, value in effect.advantages.items() if token[:2] == key] or [np.nan])
            for key in keys
        ]
        axes.plot(range(len(keys)), means, marker, markersize=4, label=side.label)
    for place in range(1, len(keys)):
        if keys[place][0] != keys[place - 1][0]:
            axes.axvline(place - 0.5, color="lightgrey", linewidth=0.8, zorder=0)
    axes.axhline(0, color="grey", linewidth=0.8, zorder=0)
    axes.set_xlabel("rollouts, group after group")
    axes.set_ylabel("advantage (mean over its tokens)")
    axes.set_title("advantage of each rollout")
    axes.legend(fontsize=8)
