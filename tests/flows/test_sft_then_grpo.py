"""The main job on the tiny model: SFT, then GRPO on its result, with evaluations, records and a longer second part."""

import shutil

import pyarrow.parquet
import pytest
import torch
import transformers

from posttrain.config import Recipe, read_recipe, validate
from posttrain.evals.record import read_results
from posttrain.launch import launch, resume
from posttrain.records.names import check_names
from posttrain.records.run_directory import RunDirectory

HELD_OUT = {"generator": "maximum", "options": {"length": 2, "split": "test"}, "limit": 8}
TASKS = {"generator": "maximum", "options": {"length": 2, "split": "train"}}


def sft(model, directory, **run):
    return validate(
        Recipe,
        {
            "run": {"name": "sft", "steps": 60, "checkpoint_every": 25, "directory": str(directory), **run},
            "model": {"path": model},
            "tasks": TASKS,
            "algorithm": {"type": "sft"},
            "rewards": [{"type": "exact"}],
            "rollouts": {"max_new_tokens": 4},
            "batches": {"demonstrations_per_step": 16},
            "learner": {"type": "local", "learning_rate": 1e-2, "warmup_steps": 3},
            "evaluation": {"tasks": HELD_OUT, "samples": 2, "every": 40},
        },
        where="test",
    )


def grpo(model, directory):
    return validate(
        Recipe,
        {
            "run": {"name": "grpo", "steps": 12, "checkpoint_every": 5, "directory": str(directory)},
            "model": {"path": str(model)},
            "tasks": TASKS,
            "algorithm": {"type": "grpo", "kl_coefficient": 0.01},
            "rewards": [{"type": "exact"}],
            "rollouts": {"prompts_per_step": 8, "group_size": 8, "max_new_tokens": 4},
            "learner": {"type": "local", "learning_rate": 2e-3},
            "evaluation": {"tasks": HELD_OUT, "samples": 4, "k": [1, 4]},
        },
        where="test",
    )


@pytest.fixture(scope="module")
def runs(model, tmp_path_factory):
    """Both parts of the main job, run once."""
    folder = tmp_path_factory.mktemp("runs")
    first = launch(sft(model, folder / "sft"))
    second = launch(grpo(folder / "sft", folder / "grpo"))
    return first, second


def series(result, name):
    return [record.metrics[name] for record in result.steps]


def test_imitation_lowers_the_loss(runs):
    losses = series(runs[0], "loss")
    assert sum(losses[-10:]) < 0.6 * sum(losses[:10])


def test_every_step_is_on_record_once(runs):
    for result, steps in zip(runs, (60, 12), strict=True):
        assert list(range(1, steps + 1)) == [record.step for record in result.steps]


def test_all_metrics_go_by_known_names(runs):
    for result in runs:
        for record in result.steps:
            check_names(record.metrics)


def test_the_numbers_that_matter_are_watched(runs):
    wanted = {
        "reward/mean", "reward/exact/mean", "pass_rate", "groups/all_right", "groups/all_wrong", "groups/mixed",
        "length/mean", "truncated_share", "entropy", "kl_ref/k1", "kl_ref/k3", "clip_share/low", "clip_share/high",
        "grad_norm", "logprob_gap/mean", "logprob_gap/max", "staleness/mean", "tokens_per_second/generate",
        "tokens_per_second/train", "memory/peak_mb", "learning_rate",
    }  # fmt: skip
    assert set() == wanted - set(runs[1].steps[0].metrics)


def test_the_recorded_recipe_reads_back_equal(runs, model):
    first, second = runs
    assert sft(model, first.directory) == read_recipe(first.directory / "config.toml")
    assert grpo(first.directory, second.directory) == read_recipe(second.directory / "config.toml")


def test_engine_and_learner_agree_in_every_step(runs):
    assert max(series(runs[1], "logprob_gap/max")) < 1e-4


def test_rollouts_are_tables_that_anybody_can_read(runs):
    files = sorted((runs[1].directory / "rollouts").glob("*.parquet"))
    assert 12 == len(files)
    for number, file in enumerate(files, start=1):
        table = pyarrow.parquet.read_table(file)
        assert 64 == table.num_rows
        assert {number} == set(table["step"].to_pylist())
        assert {0.0, 1.0} >= set(table["reward"].to_pylist())


def test_evaluations_are_written_where_they_are_due(runs):
    first, second = runs
    assert [0, 40, 60] == [result.step for result in read_results(first.directory / "evals.jsonl")]
    assert [0, 12] == [result.step for result in read_results(second.directory / "evals.jsonl")]
    assert list(second.evaluations) == read_results(second.directory / "evals.jsonl")
    assert {1, 4} == set(second.evaluations[-1].pass_at)


def test_both_parts_are_measured_by_one_protocol_of_tasks_and_template(runs):
    before, after = runs[0].evaluations[-1].fingerprint, runs[1].evaluations[0].fingerprint
    assert (before.tasks_digest, before.template_hash) == (after.tasks_digest, after.template_hash)


def test_the_checkpoint_is_a_model_that_transformers_loads(runs):
    folder = runs[1].directory / "checkpoints" / "step-000012" / "model"
    stored = transformers.AutoModelForCausalLM.from_pretrained(folder).state_dict()
    trained = runs[1].loaded.model.state_dict()
    assert all(torch.equal(trained[name], tensor) for name, tensor in stored.items())
    assert runs[1].loaded.tokenizer.chat_template == transformers.AutoTokenizer.from_pretrained(folder).chat_template


def test_the_second_part_began_with_the_first_parts_weights(runs, model):
    stored = runs[0].directory / "checkpoints" / "step-000060" / "model"
    reference = transformers.AutoModelForCausalLM.from_pretrained(stored)
    start = transformers.AutoModelForCausalLM.from_pretrained(model)
    assert not torch.equal(start.lm_head.weight, reference.lm_head.weight)
    assert runs[1].steps[0].metrics["kl_ref/k3"] < 1e-6


def test_the_environment_says_what_the_run_ran_on(runs):
    with RunDirectory.open(runs[1].directory, write=False) as run:
        environment = run.environment
    assert {"torch", "transformers", "posttrain"} <= environment["versions"].keys()
    assert environment["threads"]["threads"] >= 1
    assert environment["seeds"] == {"run": 0}


def test_a_run_is_extended(runs, tmp_path):
    run = shutil.copytree(runs[0].directory, tmp_path / "sft")
    result = resume(run, steps=62)
    assert 62 == len(result.steps)
    assert [0, 40, 60, 62] == [evaluation.step for evaluation in read_results(run / "evals.jsonl")]
    assert 62 == read_recipe(run / "config.toml").run.steps


def test_offline_training_ends_at_the_loss_it_is_told(model, tmp_path):
    result = launch(sft(model, tmp_path / "run", stop_at_loss=3.5))
    assert 5 <= len(result.steps) < 60
    assert sum(series(result, "loss")[-5:]) / 5 < 3.5
    assert result.evaluations[-1].step == result.steps[-1].step
