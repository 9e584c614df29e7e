"""A side is an algorithm, a preset, a recipe or a run; anything else is refused with the nearest name."""

import pytest

from posttrain.compare.sides import correction_words, resolve
from posttrain.config import write_recipe
from posttrain.correction import Correction
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


def test_a_preset_brings_its_library_s_correction():
    assert "w inside [0, 3], else 0, by sequence" in resolve("trl-1.16").terms()["correction"]
    assert "none" == resolve("verl-0.10").terms()["correction"]


def test_a_correction_can_be_changed_from_outside():
    side = resolve("grpo", ["correction.type=bypass"])
    assert "ratio pi / rollout; original denominator" == side.terms()["correction"]


def test_a_contradictory_correction_is_refused():
    with pytest.raises(ConfigError, match="count the gap twice"):
        resolve("grpo", ["correction.type=bypass", "correction.weight=truncate"])


def test_a_recipe_s_correction_is_its_own(tmp_path):
    section = {"type": "decoupled", "weight": "truncate", "cap": 4.0}
    write_recipe(build_recipe("grpo", rewards=[{"type": "exact"}], correction=section), tmp_path / "c.toml")
    assert "min(w, 4) by token" in resolve(str(tmp_path / "c.toml")).terms()["correction"]


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"type": "decoupled", "geometric": (0.9, 1.1)}, "geometric mean of w leaves [0.9, 1.1]"),
        ({"type": "decoupled", "opsm": 0.1, "denominator": "kept"}, "above 0.1 are dropped; kept denominator"),
    ],
)
def test_rejections_are_in_the_words(section, words):
    assert words in correction_words(Correction(**section))


def test_offline_algorithms_have_no_correction():
    assert "correction" not in resolve("dpo").terms()
