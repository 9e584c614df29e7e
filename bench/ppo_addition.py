"""PPO on reversed addition: warm start, then recipes/toy_ppo.toml; keeps the measured curve.

    python bench/ppo_addition.py bench/curves/ppo_addition.jsonl [key=value ...]

One line per batch of PPO (reward, passes, explained variance of the critic, losses, seconds) and one per held-out
evaluation. Overrides go to the PPO recipe, for example run.seed=1.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from posttrain.cli.demo import TOY, sft_recipe
from posttrain.config import read_recipe
from posttrain.launch import Result, launch

RECIPES = Path(__file__).parents[1] / "recipes"
KEPT = (
    "reward/mean",
    "pass_rate",
    "value/explained",
    "value/mean",
    "loss/policy",
    "loss/value",
    "entropy",
    "clip_share/low",
    "clip_share/high",
    "grad_norm",
)


def rows(result: Result) -> list[dict[str, Any]]:
    """The curve as plain rows."""
    batches = [
        {"step": record.step, "seconds": round(record.seconds, 2)}
        | {name: round(record.metrics[name], 6) for name in KEPT if name in record.metrics}
        for record in result.steps
    ]
    held_out = [
        {"step": found.step, "held_out_pass_at_1": found.pass_at[1].mean}
        | {"low": found.pass_at[1].low, "high": found.pass_at[1].high, "tasks": len(found.prompts)}
        for found in result.evaluations
    ]
    return batches + held_out


def measure(target: Path, overrides: list[str]) -> None:
    """Run both parts in a folder of their own and write the curve."""
    with tempfile.TemporaryDirectory() as folder:
        warm = launch(sft_recipe(TOY, "toy", 0, folder), check=False)
        here = [f"model.path={warm.directory}", f"run.directory={folder}/ppo", "run.checkpoint_every=1000"]
        result = launch(read_recipe(RECIPES / "toy_ppo.toml", [*here, *overrides]))
        lines = [json.dumps(row) for row in rows(result)]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    first, last = result.evaluations[0].pass_at[1].mean, result.evaluations[-1].pass_at[1].mean
    print(f"held-out pass@1 from {first:.1%} to {last:.1%} in {len(result.steps)} batches; curve in {target}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("give the file of the curve, for example bench/curves/ppo_addition.jsonl")
    measure(Path(sys.argv[1]), sys.argv[2:])
