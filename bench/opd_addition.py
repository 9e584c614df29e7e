"""On-policy distillation on reversed addition: an expert trained by reward teaches its own start, recipes/toy_opd.toml.

    python bench/opd_addition.py bench/curves/opd_addition.jsonl [student=RUN teacher=RUN] [key=value ...]

Student and teacher are the two runs of ``posttrain demo`` (SFT, and GRPO from there); without them both are trained
first. One line per batch (estimated KL to the teacher, pass rate, loss, seconds), one per held-out evaluation of the
student. Other words go to the OPD recipe, for example run.seed=1 or algorithm.form=full.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from posttrain.cli.demo import TOY, grpo_recipe, sft_recipe
from posttrain.config import read_recipe
from posttrain.launch import Result, launch

RECIPES = Path(__file__).parents[1] / "recipes"
KEPT = ("kl_teacher", "pass_rate", "loss", "entropy", "grad_norm", "length/mean")


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


def pair(folder: str) -> tuple[str, str]:
    """A warm start and the expert that reward made of it, trained now."""
    student = launch(sft_recipe(TOY, "toy", 0, folder), check=False)
    teacher = launch(grpo_recipe(TOY, str(student.directory), 0, folder), check=False)
    return str(student.directory), str(teacher.directory)


def measure(target: Path, words: list[str]) -> tuple[float, float]:
    """Distil in a folder of its own and write the curve; return held-out pass@1 before and after."""
    given = dict(word.split("=", 1) for word in words if word.startswith(("student=", "teacher=")))
    overrides = [word for word in words if word.partition("=")[0] not in given]
    with tempfile.TemporaryDirectory() as folder:
        student, teacher = (given["student"], given["teacher"]) if given else pair(folder)
        here = [f"model.path={student}", f"teacher.path={teacher}", f"run.directory={folder}/opd"]
        result = launch(read_recipe(RECIPES / "toy_opd.toml", [*here, "run.checkpoint_every=1000", *overrides]))
        lines = [json.dumps(row) for row in rows(result)]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return result.evaluations[0].pass_at[1].mean, result.evaluations[-1].pass_at[1].mean


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("give the file of the curve, for example bench/curves/opd_addition.jsonl")
    before, after = measure(Path(sys.argv[1]), sys.argv[2:])
    print(f"held-out pass@1 from {before:.1%} to {after:.1%}; curve in {sys.argv[1]}")
