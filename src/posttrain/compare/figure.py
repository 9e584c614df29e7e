"""Draws a comparison: each token's gradient on both sides, and each rollout's advantage.

Needs matplotlib, the extra ``[figures]``; the ending of the file's name decides the format (png, svg, pdf).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from posttrain.compare.difference import Comparison, View, union
from posttrain.errors import ConfigError

__all__ = ["FORMATS", "draw", "refuse_figure", "telling"]

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
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError("--figure needs matplotlib: pip install 'posttrain[figures]'") from error
    return Figure


def draw(found: Comparison, path: Path) -> None:
    """Write the figure; ConfigError if the comparison has no numbers."""
    if not found.views:
        raise ConfigError(f"--figure: there is nothing to draw: {'; '.join(found.not_compared) or 'no batch'}")
    figure = _figure_class()(figsize=(11, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    view = telling(found.views)
    _gradients(left, found, view)
    _advantages(right, found, view)
    numbers = view.numbers
    cosine = "-" if numbers.cosine is None else f"{numbers.cosine:.3f}"
    ratio = "-" if numbers.ratio is None else f"{numbers.ratio:.3g}"
    when = view.state.replace("_", " ")
    figure.suptitle(f"{found.a.label} and {found.b.label}, {when}: gradient cosine {cosine}, size ratio {ratio}")
    figure.savefig(path, dpi=150, metadata={"Software": None} if path.suffix == ".png" else None)


def telling(views: Sequence[View]) -> View:
    """The last state in which both sides move something, or the first of all."""
    return next((view for view in reversed(views) if view.numbers.cosine is not None), views[0])


def _gradients(axes: Any, found: Comparison, view: View) -> None:
    """One point per token, each side's gradient scaled to length one, so that only the direction is seen."""
    tokens = union(view.effects)
    a, b = (np.array([effect.coefficients.get(token, 0.0) for token in tokens]) for effect in view.effects)
    x, y = (-values / (np.linalg.norm(values) or 1.0) for values in (a, b))
    kinds = (
        (x * y > 0, "tab:blue", "same direction"),
        (x * y < 0, "tab:red", "opposite"),
        ((x == 0) != (y == 0), "tab:orange", "one side only"),
    )
    for where, colour, label in kinds:
        axes.scatter(x[where], y[where], s=14, alpha=0.6, color=colour, label=f"{label} ({int(where.sum())} tokens)")
    reach = float(max(np.abs(x).max(initial=0), np.abs(y).max(initial=0))) * 1.1 or 1.0
    axes.plot([-reach, reach], [-reach, reach], color="grey", linewidth=0.8)
    axes.axhline(0, color="lightgrey", linewidth=0.8, zorder=0)
    axes.axvline(0, color="lightgrey", linewidth=0.8, zorder=0)
    axes.set_xlabel(f"push on the token, {found.a.label} (share of its gradient)")
    axes.set_ylabel(f"push on the token, {found.b.label}")
    axes.set_title("each token's gradient: above 0 it becomes likelier")
    axes.legend(loc="upper left", fontsize=8)


def _advantages(axes: Any, found: Comparison, view: View) -> None:
    """Mean advantage of each rollout, group after group."""
    keys = sorted({token[:2] for token in union(view.effects)})
    for effect, side, marker in zip(view.effects, (found.a, found.b), "ox", strict=True):
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
