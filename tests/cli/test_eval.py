"""``posttrain eval``: pass@k of models and runs, protocols compared, JSON, and refusals."""

import json

import pytest

from posttrain.cli.eval import parse_ks, sections, task_section
from posttrain.config import Rollouts, Tasks
from posttrain.errors import ConfigError
from posttrain.measure import Source

MODEL = ("eval", "model", "--tasks", "held_out.jsonl", "--reward", "exact", "rollouts.max_new_tokens=4")


@pytest.mark.parametrize(("text", "expected"), [("1", (1,)), ("1,4,8", (1, 4, 8)), (" 8, 1 ,8,", (1, 8))])
def test_ks(text, expected):
    assert expected == parse_ks(text)


@pytest.mark.parametrize("text", ["", ",", "0", "-1", "1.5", "one", "1;2"])
def test_what_are_no_ks(text):
    with pytest.raises(ConfigError, match="-k takes whole numbers above 0"):
        parse_ks(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, {}),
        ("a.jsonl", {"path": "a.jsonl"}),
        ("generator:addition", {"generator": "addition", "split": "test"}),
        ("reasoning_gym:products", {"reasoning_gym": "products", "split": "test"}),
        ("dataset:openai/gsm8k", {"dataset": "openai/gsm8k"}),
        ("C:tasks.jsonl", {"path": "C:tasks.jsonl"}),
    ],
)
def test_where_tasks_come_from(text, expected):
    assert expected == task_section(text)


OFFERED = Source(model="run", tasks=Tasks(generator="addition", limit=9), rollouts=Rollouts(max_new_tokens=5, top_k=3))


def test_a_run_keeps_what_it_offers():
    assert (None, OFFERED.rollouts) == sections(OFFERED, None, [])


def test_overrides_change_what_a_run_offers():
    tasks, rollouts = sections(OFFERED, None, ["tasks.limit=2", "rollouts.top_k=0"])
    assert (Tasks(generator="addition", limit=2), Rollouts(max_new_tokens=5)) == (tasks, rollouts)


def test_named_tasks_replace_what_a_run_offers():
    tasks, _ = sections(OFFERED, "a.jsonl", ["tasks.question=q"])
    assert Tasks(path="a.jsonl", question="q") == tasks


@pytest.mark.parametrize("override", ["engine.type=local", "taks.limit=3", "run.seed=1"])
def test_other_sections_are_refused(override):
    with pytest.raises(ConfigError, match="changes only tasks and rollouts"):
        sections(OFFERED, None, [override])


def test_several_ks(posttrain):
    done = posttrain(*MODEL, "-k", "1,2,4")
    assert (0, []) == (done.code, [k for k in (1, 2, 4) if f"pass@{k}" not in done.out])


def test_samples_are_the_largest_k(posttrain):
    assert "4 samples" in posttrain(*MODEL, "-k", "1,4").out


def test_samples_can_be_more(posttrain):
    assert "6 samples" in posttrain(*MODEL, "-k", "1,4", "--samples", "6").out


def test_too_few_samples(posttrain):
    done = posttrain(*MODEL, "-k", "8", "--samples", "2")
    assert (2, True) == (done.code, "pass@8 cannot be estimated from 2 samples" in done.err)


def test_the_protocol_is_shown(posttrain):
    out = posttrain(*MODEL).out
    assert [] == [word for word in ("protocol ", "template ", "max_new_tokens 4", "verifier ") if word not in out]


def test_json_is_json(posttrain):
    done = posttrain(*MODEL, "-k", "1,2", "--json")
    found = json.loads(done.out)
    assert ({"1", "2"}, 2) == (set(found["pass_at"]), len(found["prompts"]))


def test_json_holds_the_comparison(posttrain):
    posttrain(*MODEL, "-k", "2", "--out", "before.jsonl")
    found = json.loads(posttrain(*MODEL, "-k", "2", "--against", "before.jsonl", "--json").out)
    assert ([], 2) == (found["comparison"]["warnings"], found["comparison"]["shared_prompts"])


def test_the_same_protocol_is_compared_without_a_warning(posttrain):
    posttrain(*MODEL, "-k", "2", "--out", "before.jsonl")
    out = posttrain(*MODEL, "-k", "2", "--against", "before.jsonl").out
    assert (True, False) == ("pass@2: change" in out, "not the same protocol" in out)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("rollouts.temperature=0.5",), "temperature differs: 1.0 and 0.5"),
        (('rollouts.stop=["[end]"]',), "stop differs: [] and ['[end]']"),
        (("--samples", "3"), "samples per task differs: 2 and 3"),
        (("tasks.limit=1",), "task set differs"),
    ],
    ids=lambda value: str(value),
)
def test_another_protocol_is_said(posttrain, change, words):
    posttrain(*MODEL, "-k", "2", "--out", "before.jsonl")
    out = posttrain(*MODEL, "-k", "2", "--against", "before.jsonl", *change).out
    assert (True, True) == ("not the same protocol" in out, words in out)


def test_another_verifier_is_said(posttrain):
    posttrain(*MODEL, "--out", "before.jsonl")
    words = ["number" if word == "exact" else word for word in MODEL]
    assert "verifier differs" in posttrain(*words, "--against", "before.jsonl").out


def test_results_are_appended(posttrain, here):
    posttrain(*MODEL, "--out", "all.jsonl")
    posttrain(*MODEL, "--out", "all.jsonl", "--seed", "1")
    assert 2 == len((here / "all.jsonl").read_text().splitlines())


@pytest.mark.parametrize("content", [None, "", "not json", "{}", "[]", "3"])
def test_what_is_no_result_is_refused_before_anything_runs(posttrain, here, content):
    if content is not None:
        (here / "bad.jsonl").write_text(content)
    done = posttrain("eval", "no/such/model", "--against", "bad.jsonl")
    assert (1, True) == (done.code, "bad.jsonl holds no evaluation result" in done.err)


def test_a_run_is_measured_by_its_own_protocol(posttrain, finished):
    done = posttrain("eval", finished, "--samples", "2", "--against", finished / "evals.jsonl")
    assert (0, False, True) == (done.code, "not the same protocol" in done.out, "pass@1: change" in done.out)


def test_a_built_in_generator_gives_held_out_problems(posttrain):
    words = ("eval", "model", "--tasks", "generator:sort", "--reward", "exact", "rollouts.max_new_tokens=2")
    found = json.loads(posttrain(*words, "tasks.limit=3", "--json").out)
    assert 3 == len(found["prompts"])


def test_zero_samples_are_refused(posttrain):
    assert 2 == posttrain(*MODEL, "--samples", "0").code
