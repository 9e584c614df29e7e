"""GSM8K's files as comparisons and worked solutions."""

import pytest

from posttrain.tasks.solutions import held_out, solution_rankings, worked_solutions
from posttrain.tasks.source import task_set


def row(question="q", **verdicts):
    """One row with a solution per model."""
    models = {name: {"is_correct": right, "solution": f"{name}\nA: 1"} for name, right in verdicts.items()}
    return {"question": question, "ground_truth": "A: 1", **models}


def test_right_solutions_come_first_with_score_one():
    (found,) = solution_rankings([row(a=False, b=True, c=False)])
    assert (["b\nA: 1", "a\nA: 1", "c\nA: 1"], [1.0, 0.0, 0.0]) == (found["ranking"], found["scores"])


@pytest.mark.parametrize("verdict", [True, False])
def test_problems_without_a_comparison_are_left_out(verdict):
    assert [] == list(solution_rankings([row(a=verdict, b=verdict)]))


def test_equal_texts_come_once():
    same = row(a=True, b=False)
    same["c"] = dict(same["a"])
    (found,) = solution_rankings([same])
    assert 2 == len(found["ranking"])


def test_pairs_keep_one_of_each():
    (found,) = solution_rankings([row(a=True, b=False, c=True, d=False)], pairs=True)
    assert [1.0, 0.0] == found["scores"]


def test_rows_become_tasks_with_candidates():
    (task,) = task_set(solution_rankings([row(a=False, b=True)]), data="rankings")
    assert [1.0, 0.0] == [candidate.reward for candidate in task.candidates]


def test_worked_solutions_end_with_their_answer():
    (found,) = worked_solutions([{"question": "q", "answer": "2+2 = 4\n#### 4"}])
    assert "2+2 = 4\nA: 4" == found["solution"]


def test_a_question_lies_on_one_side():
    rows = [{"question": str(number // 2)} for number in range(20)]
    training, testing = held_out(rows, every=5)
    assert (["4", "4", "9", "9"], 16) == ([one["question"] for one in testing], len(training))
