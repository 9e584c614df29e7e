"""Online algorithms on reversed addition, all from one warm start: keeps the measured curves.

    python bench/online_addition.py bench/curves grpo dapo rloo gspo reinforce_pp [key=value ...]

Writes FOLDER/NAME.jsonl: one line per batch (pass rate before any filter, reward, lengths, groups, losses, seconds) and
one per held-out evaluation. Overrides go to every run, for example run.steps=120 or run.seed=1. No run has a reference,
so that the curves differ by the estimator alone.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from posttrain.cli.demo import TOY, sft_recipe
from posttrain.config import Recipe, apply_override, validate
from posttrain.launch import Result, launch

PREFIXES = ("reward/", "groups/", "length/", "loss", "clip_share/", "mismatch/", "staleness/")
KEPT = ("pass_rate", "entropy", "grad_norm", "truncated_share", "ratio/max")
SETTINGS: dict[str, dict[str, Any]] = {"grpo": {"kl_coefficient": 0.0}, "rloo": {"kl_coefficient": 0.0}}
SETTINGS |= {
    name: {"kl_coefficient": 0.0} for name in ("reinforce_pp", "reinforce_pp_baseline", "gigpo", "grpo_process")
}
SETTINGS["dapo"] = {"overlong_buffer": 1}


def recipe(name: str, warm: str, directory: str, overrides: list[str]) -> Recipe:
    """One online run of the demo's size."""
    table: dict[str, Any] = {
        "run": {"name": name, "steps": 60, "directory": directory, "checkpoint_every": 10_000},
        "model": {"path": warm},
        "tasks": dict(TOY["tasks"]),
        "algorithm": {"type": name, **SETTINGS.get(name, {})},
        "rewards": [{"type": "exact"}],
        "rollouts": {"prompts_per_step": 32, "group_size": 8, "max_new_tokens": TOY["max_new_tokens"]},
        "learner": {"type": "local", "learning_rate": 3e-4},
        "evaluation": {"tasks": dict(TOY["held_out"]), "samples": 4},
    }
    for override in overrides:
        apply_override(table, override)
    return validate(Recipe, table, where="bench/online_addition.py")


def rows(result: Result) -> list[dict[str, Any]]:
    """The curve as plain rows."""
    batches = [
        {"step": record.step, "seconds": round(record.seconds, 2)}
        | {n: round(v, 6) for n, v in record.metrics.items() if n in KEPT or n.startswith(PREFIXES)}
        for record in result.steps
    ]
    held_out = [
        {"step": found.step, "held_out_pass_at_1": found.pass_at[1].mean}
        | {"low": found.pass_at[1].low, "high": found.pass_at[1].high, "tasks": len(found.prompts)}
        for found in result.evaluations
    ]
    return batches + held_out


def measure(target: Path, names: list[str], overrides: list[str]) -> None:
    """Run every algorithm from the same weights and write its curve."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        warm = launch(sft_recipe(TOY, "toy", 0, folder), check=False)
        for name in names:
            result = launch(recipe(name, str(warm.directory), f"{folder}/{name}", overrides), check=False)
            lines = [json.dumps(row) for row in rows(result)]
            (target / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
            first, last = result.evaluations[0].pass_at[1].mean, result.evaluations[-1].pass_at[1].mean
            print(
                f"{name:<22} held-out pass@1 from {first:.1%} to {last:.1%} in {len(result.steps)} batches", flush=True
            )


if __name__ == "__main__":
    words = sys.argv[1:]
    chosen = [word for word in words[1:] if "=" not in word]
    if not chosen:
        sys.exit("give a folder and algorithms, for example: bench/curves grpo dapo")
    measure(Path(words[0]), chosen, [word for word in words if "=" in word])
