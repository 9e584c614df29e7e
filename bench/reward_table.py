"""Puts the curves of `bench.time_to_reward` and `bench.trl_addition` side by side into bench/RESULTS.md.

python -m bench.reward_table
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.results import HERE, RESULTS, read_results, write_report

GOALS = (0.4, 0.5, 0.6)
WIDTH = 10
Lines = Sequence[Mapping[str, Any]]


def read_curve(path: Path) -> list[dict[str, Any]]:
    """The steps of a curve that have a reward."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line.get("reward") is not None]


def reached(lines: Lines, goal: float, width: int = WIDTH) -> Mapping[str, Any] | None:
    """The first step at which the mean reward of the last ``width`` steps reaches the goal."""
    for end in range(width, len(lines) + 1):
        if sum(line["reward"] for line in lines[end - width : end]) / width >= goal:
            return lines[end - 1]
    return None


def cell(lines: Lines, goal: float) -> str:
    """CPU seconds and step at which the goal is reached, or how far the curve goes."""
    found = reached(lines, goal)
    return f"not in {lines[-1]['cpu']:.0f}" if found is None else f"{found['cpu']:.0f} ({found['step']})"


def reward_table(curves: Mapping[str, Lines]) -> str:
    """One line per curve."""
    goals = " | ".join(f"CPU-s (step) to {goal:g}" for goal in GOALS)
    lines = [
        "## Time to reward",
        "",
        "Reversed addition, the 1 M model, the same warm start for all (28 % of held-out sums greedily), the same "
        f"algorithm, sizes and rate; goals are means of {WIDTH} steps. Protocol: `bench/time_to_reward.py`.",
        "",
        f"| curve | CPU-s per step | {goals} |",
        "|---|---|" + "---|" * len(GOALS),
    ]
    for name, curve in curves.items():
        per_step = curve[-1]["cpu"] / curve[-1]["step"]
        lines.append(f"| {name} | {per_step:.2f} | " + " | ".join(cell(curve, goal) for goal in GOALS) + " |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Read every kept curve and write the table."""
    names = {"addition_grpo": "ours", "trl_addition": "TRL"}
    curves = {
        f"{side}, seed {path.stem[-1]}": read_curve(path)
        for stem, side in names.items()
        for path in sorted((HERE / "curves").glob(f"{stem}_seed*.jsonl"))
    }
    results = read_results(RESULTS)
    write_report({**results, "extra": {**results.get("extra", {}), "a-time-to-reward": reward_table(curves)}})


if __name__ == "__main__":
    main()
