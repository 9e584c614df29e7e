"""Tasks from reasoning_gym come through its own factory."""

import sys

import pytest

from posttrain.config import Tasks
from posttrain.errors import ConfigError
from posttrain.tasks.gym import gym_rows
from posttrain.tasks.source import load_tasks

reasoning_gym = pytest.importorskip("reasoning_gym")


def test_rows_are_the_librarys():
    expected = reasoning_gym.create_dataset("chain_sum", seed=3, size=4)
    rows = gym_rows("chain_sum", {"size": 4}, seed=3)
    assert [(e["question"], e["answer"], e["metadata"]) for e in expected] == [
        (row["question"], row["answer"], row["metadata"]) for row in rows
    ]


def test_tasks_keep_what_the_verifier_needs():
    tasks = load_tasks(Tasks(reasoning_gym="chain_sum", options={"size": 3}), seed=1)
    assert {"metadata", "source_dataset"} == set(tasks[0].columns)
    entry = {"question": tasks[0].messages[-1]["content"], "answer": tasks[0].answer, **tasks[0].columns}
    assert 1.0 == reasoning_gym.get_score_answer_fn("chain_sum")(tasks[0].answer, entry)


def test_options_reach_the_task():
    rows = gym_rows("chain_sum", {"size": 5, "min_terms": 2, "max_terms": 2})
    assert {2} == {row["metadata"]["num_terms"] for row in rows}


def test_the_seed_in_the_options_wins():
    assert gym_rows("chain_sum", {"size": 3, "seed": 8}, seed=1) == gym_rows("chain_sum", {"size": 3}, seed=8)


def test_the_test_split_draws_from_far_away():
    train = {row["question"] for row in gym_rows("chain_sum", {"size": 20, "min_digits": 4, "max_digits": 4})}
    test = {
        row["question"] for row in gym_rows("chain_sum", {"size": 20, "min_digits": 4, "max_digits": 4}, split="test")
    }
    assert not train & test


def test_ids_name_task_seed_and_number():
    assert ["chain_sum-7-0", "chain_sum-7-1"] == [row["id"] for row in gym_rows("chain_sum", {"size": 2}, seed=7)]


def test_unknown_task():
    with pytest.raises(ConfigError, match=r"no task 'chain_sums'. Did you mean 'chain_sum'\?"):
        gym_rows("chain_sums", {})


def test_unknown_option_lists_those_there_are():
    with pytest.raises(ConfigError, match=r"refuses the options .*It has: min_terms, max_terms"):
        gym_rows("chain_sum", {"terms": 2})


def test_an_option_out_of_range():
    with pytest.raises(ConfigError, match="refuses the options"):
        gym_rows("chain_sum", {"min_terms": 5, "max_terms": 2})


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ConfigError, match=r'pip install "posttrain\[tasks\]"'):
        gym_rows("chain_sum", {})
