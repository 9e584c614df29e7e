"""Reward models on GSM8K: pairs of right and wrong model solutions, and corrupted steps; prints held-out numbers.

    POSTTRAIN_GSM8K=folder python bench/reward_models.py bench/curves/reward_models.jsonl [pairs|steps] [key=value ...]

The folder holds GSM8K's train.jsonl and example_model_solutions.jsonl. The model is the offline toy (two million
weights, one character a token) from random weights, so the numbers say that the whole path learns from real text, not
what a pretrained model would reach.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posttrain.config import Recipe, apply_override, validate
from posttrain.functional.intervals import wilson
from posttrain.launch import Result, launch
from posttrain.models.judge import load_judge, require_judge
from posttrain.records.json_lines import JsonLines
from posttrain.tasks.chat import Chat
from posttrain.tasks.solutions import held_out, solution_rankings, worked_solutions
from posttrain.tasks.source import TaskSet, task_set
from posttrain.tasks.steps import corrupt, step_group
from posttrain.types import Task

SOLUTIONS, WORKED = "example_model_solutions.jsonl", "train.jsonl"
LONGEST = {"pairs": 700, "steps": 300}
"""Characters of question and solution above which a row is left out."""


def read(name: str) -> list[dict[str, Any]]:
    """Rows of one of GSM8K's files; exits with a message where POSTTRAIN_GSM8K does not name the folder."""
    folder = os.environ.get("POSTTRAIN_GSM8K")
    if not folder or not (Path(folder) / name).is_file():
        sys.exit(f"set POSTTRAIN_GSM8K to the folder that holds GSM8K's {name}")
    return [json.loads(line) for line in (Path(folder) / name).read_text(encoding="utf-8").splitlines()]


def pair_tasks() -> tuple[TaskSet, TaskSet]:
    """Right against wrong solutions: training and held-out problems."""
    rows = [
        row for row in solution_rankings(read(SOLUTIONS)) if size(row["question"], *row["ranking"]) <= LONGEST["pairs"]
    ]
    return tuple(task_set(part, name="gsm8k pairs", data="rankings") for part in held_out(rows))  # type: ignore[return-value]


def step_tasks(seed: int = 0) -> tuple[TaskSet, TaskSet]:
    """Worked solutions, each as it is and with one mistake: training and held-out problems."""
    parts = held_out(worked(), every=6)
    return tuple(task_set(labelled(part, seed), name="gsm8k steps", data="steps", for_imitation=True) for part in parts)  # type: ignore[return-value]


def labelled(rows: list[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """The rows right and wrong, under the names a recipe reads."""
    made = corrupt(rows, seed=seed)
    return [{"question": r["question"], "answer": r["solution"], "labels": r["labels"]} for r in made]


def worked() -> list[dict[str, Any]]:
    """Short worked solutions."""
    rows = worked_solutions(read(WORKED))
    return [row for row in rows if size(row["question"], row["solution"]) <= LONGEST["steps"]]


def size(question: str, *answers: str) -> int:
    """Characters of the longest row."""
    return len(question) + max(map(len, answers))


def recipe(kind: str, directory: str, overrides: list[str]) -> Recipe:
    """What both trainings share."""
    table: dict[str, Any] = {
        "run": {"name": f"gsm8k_{kind}", "directory": directory, "steps": 200, "checkpoint_every": 1000, "threads": 1},
        "model": {"path": "toy"},
        "tasks": {"path": "<memory>"},
        "algorithm": {"type": "reward_model" if kind == "pairs" else "prm"},
        "batches": {"demonstrations_per_step": 8 if kind == "pairs" else 24},
        "learner": {"type": "local", "learning_rate": 1e-3, "warmup_steps": 20, "schedule": "cosine"},
        "evaluation": {"tasks": {"path": "<memory>"}, "before": False},
    }
    for override in overrides:
        apply_override(table, override)
    return validate(Recipe, table, where="bench/reward_models.py")


def train(kind: str, directory: str, overrides: list[str]) -> tuple[Result, Mapping[str, Any]]:
    """Train on one kind of labels; return the run and its last held-out numbers."""
    training, testing = pair_tasks() if kind == "pairs" else step_tasks()
    result = launch(recipe(kind, directory, overrides), tasks=training, held_out=testing)
    quality = dict(JsonLines(result.directory / "scores.jsonl").read()[-1])
    return result, quality | (paired(result.directory, testing) if kind == "steps" else {})


def paired(directory: Path, tasks: TaskSet) -> dict[str, float]:
    """How often a solution's steps score higher on average than those of the same solution with a mistake.

    Chance is one half whatever the share of right steps is, and what both versions have in common cancels.
    """
    judge = load_judge(require_judge(str(directory)), "cpu", "float32")
    chat = Chat(judge.tokenizer)
    by_question: dict[str, list[float]] = {}
    for task in tasks:
        scores = judge.scores(prefixes(task, chat), token_budget=8192)
        by_question.setdefault(str(task.messages[0]["content"]), []).append(sum(scores) / len(scores))
    gaps = [found[0] - found[1] for found in by_question.values() if len(found) == 2]
    share = sum((gap > 0) + 0.5 * (gap == 0) for gap in gaps) / len(gaps)
    low, high = wilson(share, len(gaps))
    return {"paired_accuracy": share, "paired_low": low, "paired_high": high, "paired_count": len(gaps)}


def prefixes(task: Task, chat: Chat) -> list[tuple[int, ...]]:
    """The row up to the last token of each step."""
    segment = step_group(task, 0, chat).rollouts[0].segments[0]
    following = (*segment.turns[1:], -1)
    ends = [place for place, turn in enumerate(segment.turns) if turn >= 0 and following[place] != turn]
    return [segment.ids[: end + 1] for end in ends]


def main(target: Path, kind: str, overrides: list[str]) -> None:
    """Train, print, and keep the curve."""
    result, quality = train(kind, str(Path("runs") / f"gsm8k_{kind}_{os.getpid()}"), overrides)
    rows = [
        {"kind": kind, "step": record.step, "loss": record.metrics["loss"], "accuracy": record.metrics["accuracy"]}
        for record in result.steps
    ]
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("a", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in [*rows, {"kind": kind, "held_out": True, **quality}])
    print(
        f"{kind}: held-out accuracy {quality['accuracy']:.1%} ({quality['low']:.1%} to {quality['high']:.1%}) on "
        f"{quality['count']}, chance {quality['chance']:.1%}, calibration error {quality['calibration_error']:.3f}"
    )
    if kind == "steps":
        print(
            f"a right solution above its corrupted copy: {quality['paired_accuracy']:.1%} "
            f"({quality['paired_low']:.1%} to {quality['paired_high']:.1%}) of {quality['paired_count']}, chance 50 %"
        )


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[2] not in ("pairs", "steps"):
        sys.exit("usage: python bench/reward_models.py CURVE.jsonl pairs|steps [key=value ...]")
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
