"""Runs one row on both sides, interleaved A B A B, and keeps the minimum of CPU seconds and the peak of memory."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.worker import Side
from bench.workloads import Row


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What one side's step costs."""

    cpu: float
    """CPU seconds of one step: the minimum; for free lengths, of the cheapest token times the mean of tokens."""
    median: float
    """Its median."""
    wall: float
    """Wall seconds: the minimum."""
    tokens: float
    """Tokens sampled per step: the mean."""
    memory: float
    """Peak memory above idle, MB."""
    idle: float
    """Memory before the first step, MB."""
    stations: Mapping[str, float] = field(default_factory=dict)
    """CPU seconds by station in the cheapest step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One line of the results."""

    row: str
    """Name of the row."""
    ours: Cost
    """posttrain."""
    peer: Cost
    """TRL at its best settings."""
    gradient: float | None
    """Relative distance of the two gradients of one batch; None if it was not compared."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """What ran."""

    @property
    def ratio(self) -> float:
        """How many times fewer CPU seconds ours takes."""
        return self.peer.cpu / self.ours.cpu

    @property
    def memory_share(self) -> float:
        """Our memory above idle as a share of the peer's."""
        return self.ours.memory / self.peer.memory


def cost(steps: Sequence[Mapping[str, Any]], memory: Mapping[str, float], *, per_token: bool) -> Cost:
    """Put the steps of one side together; with ``per_token`` unequal lengths are allowed for."""
    mean = sum(step["tokens"] for step in steps) / len(steps)
    scale = [mean / step["tokens"] if per_token else 1.0 for step in steps]
    paid = [step["cpu"] * factor for step, factor in zip(steps, scale, strict=True)]
    best = paid.index(min(paid))
    return Cost(
        cpu=paid[best],
        median=sorted(paid)[len(paid) // 2],
        wall=min(step["wall"] * factor for step, factor in zip(steps, scale, strict=True)),
        tokens=mean,
        memory=memory["peak"] - memory["idle"],
        idle=memory["idle"],
        stations={name: spent * scale[best] for name, spent in steps[best]["stations"].items()},
    )


def even(ours: Cost, peer: Cost) -> Cost:
    """Our cost at the peer's mean of tokens, where lengths were free."""
    factor = peer.tokens / ours.tokens
    moved = {name: spent * factor for name, spent in ours.stations.items()}
    changed = {"cpu": ours.cpu * factor, "median": ours.median * factor, "tokens": peer.tokens, "stations": moved}
    return Cost(**{**asdict(ours), **changed})


def compare(
    row: Row, *, model: str, here: str, there: str, options: Mapping[str, Any] | None = None, steps: int | None = None
) -> Comparison:
    """Measure one row. ``here`` and ``there`` are the two interpreters; ``options`` go to the peer."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        common = {"row": asdict(row), "model": model}
        sides = [Side("posttrain", here, "bench.ours", common, folder / "ours.log")]
        try:
            sides.append(Side("TRL", there, "bench.peer_trl", {**common, **(options or {})}, folder / "peer.log"))
            versions = {**sides[1].ready, "posttrain": sides[0].ready["version"]}
            where = {"do": "gradient", "path": str(folder / "gradient.pt")}
            gradient = None
            if not (options or {}).get("defaults"):
                sides[0].ask(where)
                gradient = sides[1].ask(where)["relative"]
            paid = interleave(sides, row.steps if steps is None else steps)
            memory = [side.ask({"do": "memory"}) for side in sides]
        finally:
            for side in sides:
                side.end()
    ours, peer = (cost(p, m, per_token=row.free) for p, m in zip(paid, memory, strict=True))
    ours = even(ours, peer) if row.free else ours
    return Comparison(row=row.name, ours=ours, peer=peer, gradient=gradient, versions=versions)


def interleave(sides: Sequence[Side], steps: int) -> list[list[dict[str, Any]]]:
    """One step of each in turn; the first of each warms up and does not count."""
    paid: list[list[dict[str, Any]]] = [[] for _ in sides]
    for _ in range(1 + steps):
        for place, side in enumerate(sides):
            paid[place].append(side.ask({"do": "step"}))
    return [steps_of[1:] for steps_of in paid]
