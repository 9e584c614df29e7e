"""Online algorithms learn reversed addition from a warm start; the curves of longer runs are in bench/curves."""

import pytest
from bench.online_addition import recipe

from posttrain.cli.demo import TOY, sft_recipe
from posttrain.launch import launch


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """The directory of a supervised warm start."""
    return str(launch(sft_recipe(TOY, "toy", 0, str(tmp_path_factory.mktemp("warm"))), check=False).directory)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo", "dapo", "rloo", "gspo", "reinforce_pp"])
def test_it_learns_reversed_addition(warm, tmp_path, name):
    result = launch(recipe(name, warm, str(tmp_path / name), ["run.steps=40"]))
    rates = [record.metrics["pass_rate"] for record in result.steps]
    before, after = result.evaluations[0].pass_at[1].mean, result.evaluations[-1].pass_at[1].mean
    assert after > before + 0.1
    assert sum(rates[-5:]) > sum(rates[:5]) + 0.5
