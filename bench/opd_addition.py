"""On-policy distillation on reversed addition: a warm student, a teacher of the same origin, recipes/toy_opd.toml.

    python bench/opd_addition.py bench/curves/opd_addition.jsonl [key=value ...]

One line per batch (estimated KL to the teacher, pass rate, loss, seconds), one per held-out evaluation of the student,
and one for the teacher, who is the student after 200 further batches of SFT. Overrides go to the OPD recipe, for
example run.seed=1 or algorithm.form=full.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from posttrain.cli.demo import TOY, sft_recipe
from posttrain.config import Recipe, read_recipe
from posttrain.launch import Result, launch

RECIPES = Path(__file__).parents[1] / "recipes"
KEPT = ("kl_teacher", "pass_rate", "loss", "entropy", "grad_norm", "length/mean")
TEACHER_BATCHES = 200


def teacher_recipe(student: Result, folder: str) -> Recipe:
    """The student's warm start, gone on with."""
    recipe = sft_recipe(TOY, str(student.directory), 1, folder)
    run = recipe.run.model_copy(
        update={
            "steps": TEACHER_BATCHES,
            "stop_at_loss": None,
            "directory": f"{folder}/teacher",
            "checkpoint_every": 1000,
        }
    )
    return recipe.model_copy(update={"run": run})


def rows(result: Result) -> list[dict[str, Any]]:
    """The curve as plain rows."""
    batches = [
        {"step": record.step, "seconds": round(record.seconds, 2)}
        | {name: round(record.metrics[name], 6) for name in KEPT if name in record.metrics}
        for record in result.steps
    ]
    return batches + [held_out("student", found.step, found) for found in result.evaluations]


def held_out(who: str, step: int | None, found: Any) -> dict[str, Any]:
    """One evaluation as a row."""
    number = found.pass_at[1]
    return {"who": who, "step": step, "held_out_pass_at_1": number.mean, "low": number.low, "high": number.high}


def measure(target: Path, overrides: list[str]) -> tuple[float, float, float]:
    """Run the three parts in a folder of their own and write the curve; return pass@1 before, after, and teacher's."""
    with tempfile.TemporaryDirectory() as folder:
        student = launch(sft_recipe(TOY, "toy", 0, folder), check=False)
        teacher = launch(teacher_recipe(student, folder), check=False)
        paths = [f"model.path={student.directory}", f"teacher.path={teacher.directory}"]
        here = [*paths, f"run.directory={folder}/opd", "run.checkpoint_every=1000"]
        result = launch(read_recipe(RECIPES / "toy_opd.toml", [*here, *overrides]))
    last = teacher.evaluations[-1]
    lines = [json.dumps(row) for row in [*rows(result), held_out("teacher", None, last)]]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    before, after = result.evaluations[0].pass_at[1].mean, result.evaluations[-1].pass_at[1].mean
    return before, after, last.pass_at[1].mean


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("give the file of the curve, for example bench/curves/opd_addition.jsonl")
    before, after, best = measure(Path(sys.argv[1]), sys.argv[2:])
    print(f"held-out pass@1 from {before:.1%} to {after:.1%}; the teacher has {best:.1%}; curve in {sys.argv[1]}")
