"""Reward models as whole runs: train, measure, save, serve as a reward; steps too; and real data where it is given."""

import json
import os
import runpy
from pathlib import Path

import pytest

from posttrain.config import Recipe, read_recipe, validate
from posttrain.errors import ConfigError, DataError
from posttrain.launch import launch, resume
from posttrain.models.values import HEAD_FILE
from posttrain.records.names import check_names
from posttrain.tasks.source import task_set
from posttrain.tasks.steps import corrupt

ROOT = Path(__file__).parents[2]
ONE_PER_DIGIT = {"generator": "maximum", "options": {"length": 2}}


def recipe(model, directory, algorithm, **sections):
    table = {
        "run": {"steps": 2, "directory": str(directory), "threads": 1},
        "model": {"path": model},
        "tasks": ONE_PER_DIGIT,
        "algorithm": algorithm,
        "batches": {"demonstrations_per_step": 4},
        "learner": {"type": "local", "learning_rate": 1e-2},
        "evaluation": {"tasks": ONE_PER_DIGIT | {"limit": 6}, "before": False},
    }
    return validate(Recipe, table | sections, where="test")


def scores(directory):
    return [json.loads(line) for line in (directory / "scores.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def trained(model, tmp_path_factory):
    """A reward model of two steps."""
    directory = tmp_path_factory.mktemp("judge") / "run"
    algorithm = {"type": "reward_model", "centring": 0.01}
    return launch(recipe(model, directory, algorithm, run={"steps": 2, "directory": str(directory), "threads": 1}))


def test_a_reward_model_trains_and_is_measured(trained):
    assert "fail" not in {check.status for check in trained.checks}
    for record in trained.steps:
        check_names(record.metrics)
        assert {"loss/preference", "accuracy", "margin/mean"} <= set(record.metrics)
    (found,) = scores(trained.directory)
    assert (2, 6, 0.5) == (found["step"], found["count"], found["chance"])
    assert found["low"] <= found["accuracy"] <= found["high"]


def test_its_folder_holds_backbone_and_head(trained):
    (checkpoint,) = (trained.directory / "checkpoints").iterdir()
    assert {HEAD_FILE, "model.safetensors", "config.json", "tokenizer.json"} <= {
        file.name for file in (checkpoint / "model").iterdir()
    }


@pytest.mark.parametrize("reward", ["reward_model", "ensemble"])
def test_its_run_is_a_reward_and_starts_a_critic(trained, model, tmp_path, reward):
    path = str(trained.directory)
    part = {"type": reward, "path": path} if reward == "reward_model" else {"type": reward, "paths": [path, path]}
    result = launch(
        recipe(
            model,
            tmp_path / "run",
            {"type": "ppo"},
            run={"steps": 1, "directory": str(tmp_path / "run"), "threads": 1},
            rewards=[part],
            critic={"path": path, "learning_rate": 1e-3},
            rollouts={"prompts_per_step": 2, "group_size": 2, "max_new_tokens": 4},
            evaluation=None,
        ),
        check=False,
    )
    assert all(record.metrics["rollouts/failed"] == 0 for record in result.steps)
    assert 0.0 != result.steps[0].metrics["value/mean"]


def test_a_reward_that_is_no_reward_model_is_refused(model, tmp_path):
    broken = [{"type": "reward_model", "path": model}]
    with pytest.raises(ConfigError, match="nothing was trained to score"):
        launch(recipe(model, tmp_path / "run", {"type": "ppo"}, rewards=broken, evaluation=None))


def test_plackett_luce_trains_on_rankings(model, tmp_path):
    rows = [{"question": f"{n}?", "ranking": ["a", "bb", "ccc"], "scores": [2, 1, 0]} for n in range(6)]
    tasks = task_set(rows, data="rankings")
    options = {"tasks": {"path": "<memory>"}, "evaluation": None}
    settings = recipe(model, tmp_path / "run", {"type": "reward_model", "loss": "plackett_luce"}, **options)
    result = launch(settings, tasks=tasks)
    assert result.steps[1].metrics["loss"] < result.steps[0].metrics["loss"] < 2.0


def test_layout_and_split_change_no_number(model, tmp_path):
    def losses(name, **batches):
        algorithm, usual = {"type": "reward_model"}, {"demonstrations_per_step": 4}
        found = launch(recipe(model, tmp_path / name, algorithm, batches=usual | batches), check=False)
        return [record.metrics["loss"] for record in found.steps]

    assert pytest.approx(losses("a", layout="padded"), rel=1e-4) == losses(
        "b", layout="shared", tokens_per_microbatch=9
    )


def step_tasks(count=8):
    made = corrupt([{"question": f"{n}+1?", "solution": f"{n}+1={n + 1}\nA: {n + 1}"} for n in range(count)])
    rows = [{"question": row["question"], "answer": row["solution"], "labels": row["labels"]} for row in made]
    return task_set(rows, data="steps", for_imitation=True)


def test_a_process_reward_model_trains_resumes_and_is_measured(model, tmp_path):
    def settings(name, steps):
        run = {"steps": steps, "directory": str(tmp_path / name), "threads": 1}
        memory = {"tasks": {"path": "<memory>"}}
        return recipe(model, "", {"type": "prm"}, run=run, **memory, evaluation={**memory, "before": False})

    given = {"tasks": step_tasks(), "held_out": step_tasks(3)}
    whole = launch(settings("whole", 3), **given)
    launch(settings("parts", 2), **given)
    parts = resume(tmp_path / "parts", steps=3, **given)
    assert "fail" not in {check.status for check in whole.checks}
    assert [r.metrics["loss"] for r in whole.steps] == [r.metrics["loss"] for r in parts.steps]
    assert scores(tmp_path / "whole")[-1] == scores(tmp_path / "parts")[-1]
    assert 12 == scores(tmp_path / "whole")[-1]["count"]


def test_labels_that_do_not_fit_are_refused_before_a_model_is_loaded(tmp_path):
    rows = task_set([{"question": "?", "answer": "one\ntwo", "labels": [1.0]}], data="steps", for_imitation=True)
    settings = recipe("no-such-model", tmp_path / "run", {"type": "prm"}, tasks={"path": "<memory>"}, evaluation=None)
    with pytest.raises(DataError, match="one label per line, 2; got 1"):
        launch(settings, tasks=rows)


def test_a_score_head_cannot_have_a_trunk_of_its_own(tmp_path):
    settings = recipe("no-such-model", tmp_path / "run", {"type": "reward_model"}, critic={"shared": False})
    with pytest.raises(ConfigError, match="shared = true"):
        launch(settings)


@pytest.mark.slow
def test_the_toy_learns_which_sum_is_right(tmp_path):
    warm = read_recipe(ROOT / "recipes/toy_sft.toml", [f"run.directory={tmp_path}/sft", "run.stop_at_loss=0.45"])
    launch(warm, check=False)
    overrides = [f"model.path={tmp_path}/sft", f"run.directory={tmp_path}/judge", "run.steps=100"]
    launch(read_recipe(ROOT / "recipes/toy_reward_model.toml", overrides), check=False)
    found = scores(tmp_path / "judge")[-1]
    assert found["low"] > 0.75
    assert found["calibration_error"] < 0.15


@pytest.mark.slow
def test_steps_of_real_solutions_are_judged_better_than_by_chance(tmp_path, capsys):
    if not os.environ.get("POSTTRAIN_GSM8K"):
        pytest.skip("POSTTRAIN_GSM8K does not name a folder with GSM8K's files")
    bench = runpy.run_path(str(ROOT / "bench" / "reward_models.py"))
    _, quality = bench["train"]("steps", str(tmp_path / "run"), [])
    with capsys.disabled():
        print(
            f"\nGSM8K steps: accuracy {quality['accuracy']:.1%} (chance {quality['chance']:.1%}); a right solution "
            f"scores above its corrupted copy in {quality['paired_accuracy']:.1%} of {quality['paired_count']}"
        )
    assert quality["paired_low"] > 0.5
