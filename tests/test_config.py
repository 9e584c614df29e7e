"""Recipes: overrides, refusals with the nearest name, and the round trip through TOML."""

from pathlib import Path

import pytest

from posttrain import config
from posttrain.errors import ConfigError
from posttrain.learners.local import Config as LearnerConfig
from posttrain.types import Sampling
from tests.toy_runs import build_recipe, length_reward, table

RECIPES = sorted((Path(__file__).parents[1] / "recipes").glob("*.toml"))
SMALL = """
[model]
path = "toy"
[tasks]
generator = "addition"
[algorithm]
type = "grpo"
[[rewards]]
type = "exact"
[[rewards]]
type = "number"
weight = 0.5
[evaluation]
tasks = { generator = "addition" }
"""


@pytest.fixture
def recipe_file(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL, encoding="utf-8")
    return path


def read(recipe_file, *overrides):
    return config.read_recipe(recipe_file, overrides)


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("a.b=5", 5),
        ("a.b=0.5", 0.5),
        ("a.b=1e-3", 1e-3),
        ("a.b=true", True),
        ("a.b=[1, 2]", [1, 2]),
        ("a.b={c = 1}", {"c": 1}),
        ("a.b='5'", "5"),
        ("a.b=word", "word"),
        ("a.b=two words", "two words"),
        ("a.b=runs/x=y", "runs/x=y"),
        ("a.b=", ""),
        (" a.b =5", 5),
    ],
)
def test_override_values(override, value):
    found = {}
    config.apply_override(found, override)
    assert {"a": {"b": value}} == found


def test_an_override_keeps_the_neighbours():
    found = {"a": {"b": 1, "c": 2}}
    config.apply_override(found, "a.b=3")
    assert {"a": {"b": 3, "c": 2}} == found


def test_an_override_reaches_a_list_item():
    found = {"rewards": [{"weight": 1}, {"weight": 1}]}
    config.apply_override(found, "rewards.1.weight=2")
    assert [{"weight": 1}, {"weight": 2}] == found["rewards"]


def test_an_override_replaces_a_list_item():
    found = {"k": [1, 4]}
    config.apply_override(found, "k.1=8")
    assert [1, 8] == found["k"]


@pytest.mark.parametrize("override", ["steps", "=5", ".=5", "a..b=5", "a.=5"])
def test_what_is_no_override(override):
    with pytest.raises(ConfigError, match="is not key=value"):
        config.apply_override({}, override)


@pytest.mark.parametrize("override", ["rewards.2.weight=1", "rewards.first.weight=1", "rewards.2=1"])
def test_a_list_item_that_is_not_there(override):
    with pytest.raises(ConfigError, match="is not a number from 0 to 1"):
        config.apply_override({"rewards": [{}, {}]}, override)


def test_a_value_is_no_section():
    with pytest.raises(ConfigError, match="'steps' is a value, not a section"):
        config.apply_override({"run": {"steps": 5}}, "run.steps.more=1")


def test_overrides_change_the_recipe(recipe_file):
    recipe = read(recipe_file, "run.steps=5", "rewards.1.weight=2", "algorithm.clip_high=0.28", "evaluation.k=[1,2]")
    assert (5, 2.0, 0.28, (1, 2)) == (
        recipe.run.steps,
        recipe.rewards[1].weight,
        recipe.algorithm.options["clip_high"],
        recipe.evaluation.k,
    )


def test_the_word_none_empties_a_key(recipe_file):
    recipe = read(recipe_file, "tasks.generator=none", "tasks.path=mine.jsonl")
    assert (None, "mine.jsonl") == (recipe.tasks.generator, recipe.tasks.path)


def test_the_word_none_stays_a_word_where_a_key_may_not_be_empty(recipe_file):
    assert "none" == read(recipe_file, "run.name=none").run.name


def test_the_word_none_reaches_a_plug():
    assert None is config.validate(LearnerConfig, {"max_grad_norm": "none"}, where="learner").max_grad_norm


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("rn.steps=1", "unknown key 'rn'. Did you mean 'run'?"),
        ("run.stpes=1", "unknown key 'run.stpes'. Did you mean 'steps'?"),
        ("model.lora={rnak = 4}", "unknown key 'model.lora.rnak'. Did you mean 'rank'?"),
        ("evaluation.sampels=2", "unknown key 'evaluation.sampels'. Did you mean 'samples'?"),
        ("evaluation.tasks.generatr=x", "unknown key 'evaluation.tasks.generatr'. Did you mean 'generator'?"),
        ("rollouts.zzzz=1", "unknown key 'rollouts.zzzz'. Choose from: env, group_size"),
        ("run.steps=0", "key 'run.steps': Input should be greater than 0; got 0"),
        ("run.steps=many", "key 'run.steps': Input should be a valid integer"),
        ("model.dtype=float16", "key 'model.dtype': Input should be 'float32', 'bfloat16' or 'float64'"),
        ("tasks.path=x.jsonl", "give exactly one of path, dataset, generator, reasoning_gym"),
        ("tasks.generator=none", "got none"),
        ("model={}", "key 'model.path' is missing"),
    ],
)
def test_refusals_name_key_value_and_remedy(recipe_file, override, words):
    with pytest.raises(ConfigError) as caught:
        read(recipe_file, override)
    assert words in str(caught.value)


def test_refusals_name_the_file(recipe_file):
    with pytest.raises(ConfigError, match=r"small\.toml: unknown key"):
        read(recipe_file, "run.stpes=1")


def test_every_fault_is_said_at_once(recipe_file):
    with pytest.raises(ConfigError) as caught:
        read(recipe_file, "run.stpes=1", "run.seed=x")
    assert all(word in str(caught.value) for word in ("stpes", "run.seed"))


def test_a_recipe_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"does not exist\. Give the path of a TOML file"):
        config.read_recipe(tmp_path / "no.toml")


@pytest.mark.parametrize("content", [b"[run\n", b"\xff\xfe"])
def test_a_recipe_that_is_not_toml(tmp_path, content):
    (tmp_path / "bad.toml").write_bytes(content)
    with pytest.raises(ConfigError, match="is not TOML"):
        config.read_recipe(tmp_path / "bad.toml")


def test_settings_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        build_recipe().run.steps = 3


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_shipped_recipes_survive_the_round_trip(path, tmp_path):
    recipe = config.read_recipe(path)
    config.write_recipe(recipe, tmp_path / "config.toml")
    assert recipe == config.read_recipe(tmp_path / "config.toml")


@pytest.mark.parametrize(
    "sections",
    [
        {"learner": {"type": "local", "max_grad_norm": None}},
        {"model": {"path": "toy", "lora": {"targets": ["q_proj", "v_proj"]}}},
        {"rollouts": {"stop": ["\n", "END"], "env": {"type": "my:Env", "limit": None}}},
        {"evaluation": {"tasks": {"path": "a b.jsonl"}, "k": [1, 2]}},
    ],
)
def test_what_is_set_survives_the_round_trip(sections, tmp_path):
    recipe = build_recipe(**sections, rewards=[{"type": "exact"}])
    config.write_recipe(recipe, tmp_path / "config.toml")
    again = config.read_recipe(tmp_path / "config.toml")
    assert config.plain(recipe) == config.plain(again)


def test_an_emptied_option_is_empty_after_the_round_trip(tmp_path):
    recipe = build_recipe(learner={"type": "local", "max_grad_norm": None}, rewards=[{"type": "exact"}])
    config.write_recipe(recipe, tmp_path / "config.toml")
    options = config.read_recipe(tmp_path / "config.toml").learner.options
    assert None is config.validate(LearnerConfig, options, where="learner").max_grad_norm


def test_a_function_is_written_by_its_name(tmp_path):
    config.write_recipe(build_recipe(), tmp_path / "config.toml")
    again = config.read_recipe(tmp_path / "config.toml")
    assert f"{length_reward.__module__}:length_reward" == again.rewards[0].options["function"]


def test_plug_options_are_the_other_keys():
    assert {"clip_high": 0.3} == config.Plug(type="grpo", clip_high=0.3).options


def test_sampling_takes_the_section():
    rollouts = config.Rollouts(max_new_tokens=7, temperature=0.5, top_p=0.9, top_k=3, min_p=0.1, stop=("x",))
    expected = Sampling(max_new_tokens=7, temperature=0.5, top_p=0.9, top_k=3, min_p=0.1, stop=("x",))
    assert expected == rollouts.sampling()


@pytest.mark.parametrize("temperature", [0.0, 0.3])
def test_sampling_at_another_temperature(temperature):
    assert temperature == config.Rollouts().sampling(temperature).temperature


def test_validate_says_where():
    with pytest.raises(ConfigError, match=r"^here: "):
        config.validate(config.Recipe, table() | {"modle": {}}, where="here")
