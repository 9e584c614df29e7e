"""Measuring models and runs: what a run offers, what is given instead, and what is missing."""

import pytest

from posttrain import config
from posttrain.errors import ConfigError, DataError
from posttrain.evals.record import compare, read_results
from posttrain.launch import launch
from posttrain.measure import evaluate, source
from posttrain.tasks.source import task_set
from tests.toy_runs import ROWS, build_loaded, build_recipe

EVALUATION = {"tasks": {"generator": "addition", "split": "test", "limit": 3}, "samples": 2, "temperature": 0.5}
FEW = {"rollouts": config.Rollouts(max_new_tokens=3), "threads": 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "model"
    loaded = build_loaded()
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory, model):
    path = tmp_path_factory.mktemp("runs") / "run"
    recipe = build_recipe(
        run={"directory": str(path), "steps": 1, "seed": 3},
        model={"path": str(model)},
        rewards=[{"type": "exact"}],
        evaluation=EVALUATION,
    )
    return launch(recipe, check=False).directory


def test_a_model_offers_nothing_but_itself(model):
    found = source(str(model))
    assert (str(model), None, (), None) == (found.model, found.tasks, found.rewards, found.rollouts)


def test_a_run_offers_its_held_out_tasks_and_protocol(run):
    found = source(str(run))
    assert ("test", 3, "exact", 0.5, 3) == (
        found.tasks.split,
        found.tasks.limit,
        found.rewards[0].type,
        found.rollouts.temperature,
        found.seed,
    )


def test_a_run_is_measured_by_its_own_protocol(run):
    """So that its numbers may be compared with those it recorded itself."""
    recorded = read_results(run / "evals.jsonl")[-1]
    found = evaluate(run, samples=2, k=(1,), threads=1)
    assert () == compare(recorded, found).warnings


def test_other_draws_on_the_same_tasks(run):
    one, two = (evaluate(run, samples=2, seed=seed, threads=1) for seed in (0, 1))
    assert one.fingerprint.tasks_digest == two.fingerprint.tasks_digest


@pytest.mark.parametrize(
    "tasks",
    [ROWS[:2], task_set(ROWS[:2]), {"generator": "addition", "limit": 2}, config.Tasks(generator="addition", limit=2)],
)
def test_tasks_of_every_kind(model, tasks):
    assert 2 == len(evaluate(model, tasks=tasks, reward="exact", samples=1, **FEW).prompts)


def test_a_task_file(model, tmp_path):
    (tmp_path / "few.jsonl").write_text('{"question": "1+1=", "answer": "2"}\n', encoding="utf-8")
    assert 1 == len(evaluate(model, tasks=tmp_path / "few.jsonl", reward="exact", samples=1, **FEW).prompts)


def test_a_function_judges(model):
    def always(rollout):
        return 1.0

    assert 1.0 == evaluate(model, tasks=ROWS[:2], reward=always, samples=2, **FEW).pass_at[1].mean


def test_progress_counts_rollouts(model):
    told = []
    evaluate(model, tasks=ROWS[:2], reward="exact", samples=2, progress=lambda *n: told.append(n), **FEW)
    assert [(n, 4) for n in range(1, 5)] == told


def test_the_same_seed_gives_the_same_result(model):
    one, two = (evaluate(model, tasks=ROWS, reward="number", samples=2, seed=5, **FEW) for _ in range(2))
    assert one.prompts == two.prompts


def test_the_label_is_the_model(model):
    assert str(model) == evaluate(model, tasks=ROWS[:1], reward="exact", samples=1, **FEW).label


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "does not say which tasks to use: give --tasks FILE.jsonl"),
        ({"tasks": ROWS}, "does not say which reward to use: give --reward number"),
        ({"tasks": ROWS, "reward": "exat"}, "no plug called 'exat'. Did you mean 'exact'?"),
        ({"tasks": ROWS, "reward": "exact", "k": (1, 9)}, "pass@9 cannot be estimated from 8 samples per task"),
        ({"tasks": ROWS, "reward": "exact", "k": (0,)}, "pass@0 cannot be estimated"),
        ({"tasks": {"generatr": "x"}}, "unknown key 'generatr'. Did you mean 'generator'?"),
    ],
    ids=str,
)
def test_what_is_missing_is_said_before_anything_is_loaded(options, words):
    with pytest.raises(ConfigError) as caught:
        evaluate("no/such/model", **options)
    assert words in str(caught.value)


def test_a_task_file_that_is_not_there():
    with pytest.raises(DataError, match=r"nowhere\.jsonl"):
        evaluate("no/such/model", tasks="nowhere.jsonl", reward="exact")
