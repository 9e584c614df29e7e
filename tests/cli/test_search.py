"""``posttrain search``: best-of-N and step search of a model, with cost, protocol, JSON and refusals."""

import json

import pytest

from posttrain.cli.search import judge_part
from posttrain.errors import ConfigError

MODEL = ("search", "model", "--tasks", "held_out.jsonl", "--reward", "exact", "rollouts.max_new_tokens=4")
JUDGE = ("--judge", '{type = "length", start = 1, end = 9}')


def test_best_of_n_is_shown_with_its_cost_and_what_it_is_not(posttrain):
    done = posttrain(*MODEL, "-n", "4")
    assert 0 == done.code
    assert all(word in done.out for word in ("best@4", "pass@1", "majority", "completions (4.0 per task)"))
    assert "perfect judge" in done.out


def test_a_judge_chooses(posttrain):
    done = posttrain(*MODEL, "-n", "2", *JUDGE)
    assert 0 == done.code
    assert "judge ['length']" in done.out
    assert "perfect judge" not in done.out


def test_steps_are_searched(posttrain):
    done = posttrain(*MODEL, *JUDGE, "--beams", "4", "--expansions", "2", "--delimiter", "\\n")
    assert 0 == done.code
    assert all(word in done.out for word in ("step_search", "best", "verdicts", "delimiter '\\n'"))


def test_results_are_kept_and_printed_as_json(posttrain, here):
    done = posttrain(*MODEL, "-n", "2", "--out", "found.jsonl", "--json")
    row = json.loads(done.out)
    assert row == json.loads((here / "found.jsonl").read_text())
    assert ("best_of_n", 4) == (row["method"], row["cost"]["completions"])
    assert row["fingerprint"]["samples"] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--beams", "4"), "a step search needs a judge"),
        ((*JUDGE, "--beams", "4", "--expansions", "3"), "expansions must divide beams"),
        ((*JUDGE, "--beams", "4", "--aggregate", "median"), "aggregate is one of"),
        (("--judge", "{type"), "is no TOML table"),
        (("--judge", "exakt"), "no plug called 'exakt'"),
        (("run.seed=1",), "changes only tasks and rollouts"),
    ],
)
def test_what_cannot_be_searched_is_refused(words, message, posttrain):
    done = posttrain(*MODEL, *words)
    assert 2 == done.code
    assert message in done.err


@pytest.mark.parametrize(
    ("text", "expected"), [(None, None), ("exact", "exact"), (' {type = "a", b = 2}', {"type": "a", "b": 2})]
)
def test_a_judge_is_a_name_or_a_table(text, expected):
    assert expected == judge_part(text)


def test_a_broken_table_is_refused():
    with pytest.raises(ConfigError, match="no TOML table such as"):
        judge_part("{type}")
