"""Every online algorithm trains a tiny model as a whole run, and runs that were cut off go on to the same weights."""

import re

import pytest

from posttrain.errors import ConfigError
from posttrain.launch import launch, resume
from tests.algorithms.family import critic_free_names
from tests.flows.conftest import online
from tests.toy_runs import same, weights

TIMED = re.compile("second|memory")


def even(rollout):
    """A reward with some spread that needs no answer."""
    return float(sum(map(ord, rollout.text)) % 31) / 30


def spoilt(rollout):
    """Right or wrong by the text; about half of the tasks are always right."""
    return 1.0 if sum(map(ord, rollout.task.id)) % 2 else float(sum(map(ord, rollout.text)) % 2)


def run(model, directory, name, *, reward=even, **sections):
    given = {
        "run": {"directory": str(directory), "steps": 2},
        "algorithm": {"type": name},
        "rewards": [{"type": "function", "name": "even", "function": reward, "inline": True}],
    }
    given["run"] |= sections.pop("run", {})
    given["algorithm"] |= sections.pop("algorithm", {})
    return launch(online_plain(model, **given, **sections), check=False)


def online_plain(model, **sections):
    """The small online recipe with an algorithm section of its own."""
    recipe = online(model, **{k: v for k, v in sections.items() if k != "algorithm"})
    plug = type(recipe.algorithm)(**sections["algorithm"])
    return recipe.model_copy(update={"algorithm": plug})


@pytest.mark.parametrize("name", critic_free_names())
def test_every_online_algorithm_trains(model, here, name):
    result = run(model, here / "run", name)
    assert [1, 2] == [record.step for record in result.steps]
    assert result.steps[-1].version > 0
    assert all(record.metrics["grad_norm"] > 0 for record in result.steps if "grad_norm" in record.metrics)


@pytest.mark.parametrize("name", ["gspo", "clip_cov", "gmpo"])
def test_several_optimizer_steps_per_batch(model, here, name):
    result = run(model, here / "run", name, batches={"epochs": 2, "minibatches": 2})
    assert [4, 8] == [record.version for record in result.steps]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("grpo", {"kl_coefficient": 0.1, "kl_place": "reward", "kl_estimator": "k1"}),
        ("gspo", {"kl_coefficient": 0.1, "kl_estimator": "k3_k2"}),
        ("reinforce_pp_baseline", {"kl_place": "reward", "kl_estimator": "k1"}),
        ("dapo", {"kl_coefficient": 0.1, "kl_estimator": "rho_k3"}),
    ],
)
def test_a_penalty_in_either_place_trains(model, here, name, options):
    numbers = run(model, here / "run", name, algorithm=options).steps[-1].metrics
    assert "kl_ref/k1" in numbers
    assert ("loss/kl" in numbers) == (options.get("kl_place") != "reward")


@pytest.mark.parametrize(
    "section",
    [
        {"type": "decoupled", "weight": "mask", "floor": 0.5, "cap": 5.0, "denominator": "kept"},
        {"type": "decoupled", "geometric": [0.5, 2.0], "opsm": 0.1},
    ],
)
def test_a_correction_of_exact_rollouts_changes_nothing(model, here, section):
    plain, corrected = run(model, here / "plain", "grpo"), run(model, here / "corrected", "grpo", correction=section)
    numbers = corrected.steps[0].metrics
    assert (1.0, 0.0) == pytest.approx((numbers["mismatch/mean"], numbers["mismatch/dropped_share"]), abs=1e-4)
    gap = [a.metrics["loss"] - b.metrics["loss"] for a, b in zip(plain.steps, corrected.steps, strict=True)]
    assert [0.0, 0.0] == pytest.approx(gap, abs=1e-4)


def test_a_batch_of_masked_answers_changes_nothing(model, here):
    result = run(model, here / "run", "dapo", algorithm={"overlong": "mask"}, rollouts={"max_new_tokens": 1})
    assert [1.0, 1.0] == [record.metrics["truncated_share"] for record in result.steps]
    assert [0, 0] == [record.version for record in result.steps]


def test_bypass_trains_with_the_engines_numbers(model, here):
    numbers = run(model, here / "run", "grpo", correction={"type": "bypass"}).steps[0].metrics
    assert 1.0 == pytest.approx(numbers["ratio/mean"], abs=1e-4)


def test_remax_reports_what_temperature_0_earns(model, here):
    result = run(model, here / "run", "remax", rollouts={"group_size": 1})
    assert all("reward/greedy" in record.metrics for record in result.steps)


def test_an_unknown_algorithm_is_refused_with_the_nearest_name(model, here):
    with pytest.raises(ConfigError, match="Did you mean 'gspo'"):
        run(model, here / "run", "gsop")


@pytest.mark.parametrize(
    ("name", "waiting", "sections"),
    [("dapo", "groups/surplus", {}), ("dr_grpo", "tasks/resting", {"tasks": {"curriculum": {"easy_rest": 1}}})],
)
def test_a_run_that_was_cut_off_goes_on_to_the_same_weights(model, here, name, waiting, sections):
    options = {"rollouts": {"prompts_per_step": 3}, "learner": {"learning_rate": 1e-3}, "reward": spoilt, **sections}
    tasks = {"generator": "maximum", "options": {"length": 2, "size": 9}} | options.pop("tasks", {})
    whole = run(model, here / "whole", name, run={"steps": 5}, tasks=tasks, **options)
    cut = run(model, here / "cut", name, run={"steps": 2}, tasks=tasks, **options)
    assert cut.steps[-1].metrics[waiting] > 0
    rest = resume(here / "cut", steps=5)
    assert same(weights(whole.loaded.model), weights(rest.loaded.model))
    assert untimed(whole) == untimed(rest)


def untimed(result):
    """Every number that no clock measured."""
    return [{k: v for k, v in r.metrics.items() if not TIMED.search(k)} for r in result.steps]
