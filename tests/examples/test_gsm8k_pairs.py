"""Pairs of GSM8K's model solutions: right against wrong of one question, from the real file where it is there."""

import importlib.util
import json
import os
from pathlib import Path

import pytest

from posttrain.config import Tasks
from posttrain.tasks.source import load_tasks

FILE = Path(__file__).parents[2] / "examples" / "gsm8k_pairs.py"
SOLUTIONS = "example_model_solutions.jsonl"
real_data = pytest.mark.skipif(
    not os.environ.get("POSTTRAIN_GSM8K"), reason="POSTTRAIN_GSM8K does not name a folder with the GSM8K files"
)


def solution(text, right):
    return {"is_correct": right, "solution": text}


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("gsm8k_pairs", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def made(script, tmp_path):
    """The file made of the real solutions."""
    script.main(str(Path(os.environ["POSTTRAIN_GSM8K"]) / SOLUTIONS), str(tmp_path / "pairs.jsonl"))
    return tmp_path / "pairs.jsonl"


def test_right_is_set_against_every_different_wrong(script):
    row = {
        "question": "q",
        "ground_truth": "g",
        "a": solution("1", False),
        "b": solution("2 ", True),
        "c": solution("3", False),
        "d": solution("1", False),
    }
    assert [{"question": "q", "chosen": "2", "rejected": ["1", "3"]}] == list(script.pairs([row]))


@pytest.mark.parametrize("right", [True, False])
def test_a_question_without_both_kinds_gives_nothing(script, right):
    assert [] == list(script.pairs([{"question": "q", "a": solution("1", right), "b": solution("2", right)}]))


@real_data
def test_the_real_solutions_give_pairs_that_can_be_read(made):
    tasks = load_tasks(Tasks(path=str(made)), data="preferences")
    assert 731 == len(tasks)
    assert {1.0} == {task.candidates[0].reward for task in tasks}
    assert all(task.candidates[0].messages != other.messages for task in tasks for other in task.candidates[1:])


@real_data
def test_the_chosen_solution_has_the_right_answer(made):
    rows = [json.loads(line) for line in made.read_text(encoding="utf-8").splitlines()]
    lines = (Path(os.environ["POSTTRAIN_GSM8K"]) / SOLUTIONS).read_text(encoding="utf-8").splitlines()
    truth = {row["question"]: row["ground_truth"].rpartition("A:")[2].strip() for row in map(json.loads, lines)}
    right = sum(truth[row["question"]] == row["chosen"].rpartition("A:")[2].strip() for row in rows)
    assert right > 0.95 * len(rows)
