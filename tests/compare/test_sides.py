"""A side is an algorithm, a preset, a recipe or a run; anything else is refused with the nearest name."""

import pytest

from posttrain.compare.sides import resolve
from posttrain.config import write_recipe
from posttrain.errors import ConfigError
from tests.toy_runs import build_recipe


@pytest.fixture
def recipe_file(tmp_path):
    recipe = build_recipe(
        "grpo", rewards=[{"type": "exact"}], rollouts={"max_new_tokens": 9}, batches={"epochs": 2, "minibatches": 1}
    )
    write_recipe(recipe, tmp_path / "config.toml")
    return tmp_path / "config.toml"


def test_an_algorithm_has_its_defaults():
    side = resolve("grpo")
    assert ("algorithm", 0.2) == (side.kind, side.config.clip_high)


def test_overrides_change_options_and_the_label():
    side = resolve("grpo", ["clip_high=0.28"])
    assert (0.28, "grpo (clip_high=0.28)") == (side.config.clip_high, side.label)


def test_a_wrong_override_is_refused_by_name():
    with pytest.raises(ConfigError, match="unknown key 'clip_hi'"):
        resolve("grpo", ["clip_hi=0.28"])


def test_a_preset_carries_its_source():
    side = resolve("verl-0.10")
    assert ("preset", "grpo", 3.0) == (side.kind, side.plug.type, side.config.dual_clip)
    assert side.preset is not None
    assert "core_algos.py" in side.preset.source


def test_a_recipe_brings_what_else_moves_the_gradient(recipe_file):
    side = resolve(str(recipe_file))
    terms = side.terms()
    assert "recipe" == side.kind
    assert "2 epochs x 1 minibatches" == terms["optimizer steps per batch"]
    assert "0.01" == terms["learning rate"]
    assert 9.0 == side.constant(12.0)


def test_a_run_directory_is_a_run(recipe_file):
    assert "run" == resolve(str(recipe_file.parent)).kind


def test_an_algorithm_takes_the_batch_s_longest_completion():
    assert 12.0 == resolve("grpo").constant(12.0)


def test_a_wrong_word_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"'grpoo' is no algorithm.*Did you mean 'grpo'"):
        resolve("grpoo")


def test_a_word_near_nothing_is_answered_with_all_names():
    with pytest.raises(ConfigError, match=r"Algorithms and presets: .*dapo.*verl-0\.10"):
        resolve("qqqqqq")


def test_offline_recipes_say_rows_per_step(tmp_path):
    recipe = build_recipe("sft", rewards=None)
    write_recipe(recipe, tmp_path / "sft.toml")
    assert "3" == resolve(str(tmp_path / "sft.toml")).terms()["rows per step"]
