"""Steps of a solution: which tokens they end at, which labels fit, and how mistakes are made."""

import pytest

from posttrain.errors import DataError
from posttrain.models.tiny import build_tokenizer
from posttrain.tasks.chat import Chat
from posttrain.tasks.source import task_set
from posttrain.tasks.steps import corrupt, refuse_unlabelled, step_group, step_labels
from posttrain.types import Task

SOLUTION = "3+4=7\nthen 7+5=12\nso 12"


def task(labels=(1.0, 1.0, 0.0), solution=SOLUTION):
    messages = ({"role": "user", "content": "3+4+5?"}, {"role": "assistant", "content": solution})
    return Task(id="t", messages=messages, columns={} if labels is None else {"labels": list(labels)})


@pytest.fixture(scope="module")
def chat():
    return Chat(build_tokenizer())


def texts(group, chat):
    """The text of each step by its tokens."""
    segment = group.rollouts[0].segments[0]
    steps = sorted(set(segment.turns) - {-1})
    return [chat.decode([i for i, turn in zip(segment.ids, segment.turns, strict=True) if turn == s]) for s in steps]


def test_a_step_ends_with_the_token_that_completes_its_text(chat):
    assert ["3+4=7", "\nthen 7+5=12", "\nso 12"] == texts(step_group(task(), 3, chat), chat)


def test_the_closing_token_belongs_to_the_last_step(chat):
    assert 2 == step_group(task(), 3, chat).rollouts[0].segments[0].turns[-1]


def test_one_line_is_one_step(chat):
    assert ["so 12"] == texts(step_group(task([0.5], "so 12"), 3, chat), chat)


def test_the_group_is_one_solution_of_many_turns(chat):
    group = step_group(task(), 3, chat)
    assert (3, 1, 3) == (group.position, len(group.rollouts), group.rollouts[0].turn_count)


def test_labels_may_be_shares_or_missing():
    assert [1.0, None, 0.25] == step_labels(task([1, None, 0.25]))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (None, "one label per line, 3; got None"),
        ([1.0, 0.0], "one label per line, 3; got 2"),
        ([1.0, 0.0, 2.0], "from 0 to 1, or null; got 2.0"),
        ([1.0, "yes", 0.0], "got 'yes'"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels, message, chat):
    for refuse in (step_labels, lambda one: step_group(one, 0, chat), lambda one: refuse_unlabelled([one])):
        with pytest.raises(DataError, match=message):
            refuse(task(labels))


ROWS = [{"question": "3+4+5?", "solution": SOLUTION}] * 40


def test_every_solution_comes_right_and_wrong():
    found = list(corrupt(ROWS))
    assert (80, [1.0, 1.0, 1.0]) == (len(found), found[0]["labels"])
    assert all(row["solution"] == SOLUTION for row in found[::2])


def test_a_mistake_makes_every_later_step_wrong_and_no_earlier_one():
    for row in list(corrupt(ROWS))[1::2]:
        first = row["labels"].index(0.0)
        lines = row["solution"].split("\n")
        assert SOLUTION.split("\n")[:first] == lines[:first]
        assert SOLUTION.split("\n")[first] != lines[first]
        assert {0.0} == set(row["labels"][first:])


def test_a_mistake_is_carried_on():
    row = next(row for row in list(corrupt(ROWS))[1::2] if row["labels"] == [0.0, 0.0, 0.0])
    wrong = row["solution"].split("\n")[0].removeprefix("3+4=")
    assert f"then {wrong}+5=12" == row["solution"].split("\n")[1]


def test_mistakes_fall_on_every_step():
    assert {0, 1, 2} == {row["labels"].index(0.0) for row in list(corrupt(ROWS))[1::2]}


def test_a_seed_makes_the_same_mistakes():
    assert list(corrupt(ROWS, seed=4)) == list(corrupt(ROWS, seed=4))
    assert list(corrupt(ROWS, seed=4)) != list(corrupt(ROWS, seed=5))


def test_a_solution_without_numbers_comes_only_as_it_is():
    assert 1 == len(list(corrupt([{"solution": "so it is"}])))


def test_rows_become_tasks_that_can_be_judged(chat):
    rows = [{"question": row["question"], "answer": row["solution"], "labels": row["labels"]} for row in corrupt(ROWS)]
    tasks = task_set(rows, for_imitation=True, data="steps")
    refuse_unlabelled(tasks)
    assert 3 == step_group(tasks[1], 0, chat).rollouts[0].turn_count
