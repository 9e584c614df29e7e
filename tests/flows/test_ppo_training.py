"""PPO and VAPO as whole runs: every option trains, a resumed run has the same bits, and the toy learns."""

import copy
import math
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from posttrain.cli.demo import TOY, sft_recipe
from posttrain.config import Recipe, read_recipe, validate
from posttrain.errors import ConfigError
from posttrain.launch import launch, resume
from posttrain.models.values import HEAD_FILE
from posttrain.records.names import check_names

RECIPES = Path(__file__).parents[2] / "recipes"
SEPARATE = {"learning_rate": 1e-3}
SHARED = {"shared": True, "learning_rate": 1e-3}
PLAIN = {"type": "ppo", "kl_coefficient": 0.0}
BATCHES = {"epochs": 2, "minibatches": 2}


def recipe(model, directory, algorithm=PLAIN, critic=SEPARATE, **sections):
    table = {
        "run": {"steps": 2, "directory": str(directory), "threads": 1},
        "model": {"path": model},
        "tasks": {"generator": "maximum", "options": {"length": 2}},
        "algorithm": algorithm,
        "critic": critic,
        "rewards": [{"type": "length", "start": 0, "end": 4}],
        "rollouts": {"prompts_per_step": 2, "group_size": 2, "max_new_tokens": 4},
        "batches": BATCHES,
        "learner": {"type": "local", "learning_rate": 1e-2},
    }
    return validate(Recipe, table | sections, where="test")


@pytest.mark.parametrize(
    ("algorithm", "critic"),
    [
        ({"type": "ppo"}, SEPARATE),
        ({"type": "ppo", "kl_place": "loss", "kl_estimator": "k3_k2", "entropy_target": 3.0}, SHARED),
        ({"type": "ppo", "gae": "turn", "dual_clip": 3.0, "value_clip": "none", "kl_target": 0.1}, SEPARATE),
        ({"type": "vapo"}, SEPARATE | {"warmup_batches": 1}),
    ],
)
def test_every_option_trains(model, tmp_path, algorithm, critic):
    result = launch(recipe(model, tmp_path / "run", algorithm, critic))
    assert [1, 2] == [record.step for record in result.steps]
    assert "fail" not in {check.status for check in result.checks}
    for record in result.steps:
        check_names(record.metrics)
        assert math.isfinite(record.metrics["loss"])
        assert {"value/mean", "loss/value", "return/mean"} <= set(record.metrics)


def test_layout_and_split_change_no_number(model, tmp_path):
    def losses(name, **batches):
        found = launch(recipe(model, tmp_path / name, batches=BATCHES | batches), check=False)
        return [record.metrics["loss/value"] for record in found.steps]

    expected = losses("whole", layout="shared")
    assert pytest.approx(expected, rel=1e-4) == losses("split", layout="packed", tokens_per_microbatch=40)


def test_warm_up_leaves_the_policy_as_it_was(model, tmp_path):
    result = launch(recipe(model, tmp_path / "run", critic=SEPARATE | {"warmup_batches": 2}), check=False)
    before = AutoModelForCausalLM.from_pretrained(model).parameters()
    assert all(torch.equal(one, other) for one, other in zip(before, result.loaded.model.parameters(), strict=True))
    assert result.steps[1].metrics["value/mean"] < 0


def test_a_resumed_run_has_the_same_bits(model, tmp_path):
    algorithm, critic = {"type": "ppo", "kl_target": 0.01, "kl_horizon": 8.0}, SEPARATE | {"warmup_batches": 1}

    def run(name, steps):
        section = {"steps": steps, "directory": str(tmp_path / name), "threads": 1}
        return launch(recipe(model, tmp_path / name, algorithm, critic, run=section), check=False)

    whole = run("whole", 3)
    run("parts", 2)
    parts = resume(tmp_path / "parts", steps=3)
    assert [r.metrics["loss"] for r in whole.steps] == [r.metrics["loss"] for r in parts.steps]
    assert [r.metrics["kl_coefficient"] for r in whole.steps] == [r.metrics["kl_coefficient"] for r in parts.steps]
    pairs = zip(whole.loaded.model.parameters(), parts.loaded.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_a_critic_begins_where_another_run_left_its_critic(model, tmp_path):
    launch(recipe(model, tmp_path / "first"), check=False)
    trained = next((tmp_path / "first" / "checkpoints").iterdir()) / "critic" / "model"
    assert (trained / HEAD_FILE).is_file()
    for part in Path(model).glob("tokenizer*"):
        (trained / part.name).write_bytes(part.read_bytes())
    again = launch(recipe(model, tmp_path / "again", critic=SEPARATE | {"path": str(trained)}), check=False)
    assert 0.0 != again.steps[0].metrics["value/mean"]


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"critic": {"shared": True, "path": "elsewhere"}}, "policy's trunk"),
        ({"critic": {"colour": 1}}, "colour"),
        ({"algorithm": {"type": "dr_grpo"}}, "needs no values"),
    ],
)
def test_a_critic_that_cannot_be_is_refused_before_a_model_is_loaded(sections, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        launch(recipe("no-such-model", tmp_path / "run", **copy.deepcopy({"critic": SEPARATE} | sections)))


@pytest.mark.slow
def test_ppo_learns_reversed_addition(tmp_path):
    warm = launch(sft_recipe(TOY, "toy", 0, str(tmp_path)), check=False)
    overrides = [f"model.path={warm.directory}", f"run.directory={tmp_path}/ppo", "run.steps=28"]
    result = launch(read_recipe(RECIPES / "toy_ppo.toml", overrides))
    explained = [record.metrics["value/explained"] for record in result.steps]
    before, after = result.evaluations[0].pass_at[1].mean, result.evaluations[-1].pass_at[1].mean
    assert after > before + 0.15
    assert sum(explained[-8:]) / 8 > max(0.03, sum(explained[:5]) / 5 + 0.03)
