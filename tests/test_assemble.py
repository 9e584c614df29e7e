"""Recipe to objects: plugs, contradictions, departures, leaks, and layouts, before and after a model is loaded."""

import json
import sys
import textwrap
from pathlib import Path

import pytest

from posttrain import config
from posttrain.assemble import assemble, build_rubric, departures, leaks, prepare
from posttrain.errors import ConfigError, DataError
from posttrain.models.selftest import supported_layouts
from posttrain.plugs import build_plug, find_plug, plug_names, validated
from posttrain.tasks.source import task_set
from tests.models.samples import ragged_groups
from tests.toy_runs import ROWS, build_assembly, build_loaded, build_recipe

RECIPES = sorted((Path(__file__).parents[1] / "recipes").glob("*.toml"))
GSM8K = '{"question": "1+1?", "answer": "Add them. #### 2"}\n{"question": "2+1?", "answer": "Add. #### 3"}\n'
PLUGS = """
from posttrain.config import Settings


class Config(Settings):
    size: int = 3


class Mine:
    def __init__(self, config, name="x"):
        self.config, self.name = config, name


class Nested:
    class Config(Settings):
        depth: int = 1

    def __init__(self, config, window):
        self.config, self.window = config, window


def plain(options):
    return options
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of the user's own beside the recipe."""
    (tmp_path / "own_plugs.py").write_text(textwrap.dedent(PLUGS), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "own_plugs"
    sys.modules.pop("own_plugs", None)


def plug(kind, **options):
    return config.Plug(type=kind, **options)


def refused(words, kind="grpo", /, **sections):
    with pytest.raises(ConfigError) as caught:
        prepare(build_recipe(kind, **sections))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("algorithms", "grpo"),
        ("rewards", "exact"),
        ("envs", "single_turn"),
        ("engines", "local"),
        ("weight_sync", "alias"),
    ],
)
def test_a_plug_is_found_by_its_file_name(folder, name):
    config_class, made = find_plug(folder, name)
    assert (f"posttrain.{folder}.{name}", "Config") == (made.__module__, config_class.__name__)


@pytest.mark.parametrize("folder", ["algorithms", "rewards", "envs", "engines", "learners", "weight_sync"])
def test_every_plug_can_be_found(folder):
    assert all(callable(find_plug(folder, name)[1]) for name in plug_names(folder))


def test_an_unknown_plug_names_the_nearest():
    with pytest.raises(ConfigError, match=r"engines: no plug called 'scriptd'\. Did you mean 'scripted'\?"):
        find_plug("engines", "scriptd")


@pytest.mark.parametrize("name", ["__init__", "../grpo", "grpo.py", ""])
def test_only_file_names_are_plugs(name):
    with pytest.raises(ConfigError, match="no plug called"):
        find_plug("algorithms", name)


def test_an_own_plug_is_module_and_class(own):
    made = build_plug("rewards", plug(f"{own}:Mine", size=5), name="r", window=7)
    assert (5, "r") == (made.config.size, made.name)


def test_an_own_class_may_hold_its_config(own):
    made = build_plug("engines", plug(f"{own}:Nested", depth=4), name="r", window=7)
    assert (4, 7) == (made.config.depth, made.window)


def test_own_options_are_validated(own):
    with pytest.raises(ConfigError, match=r"unknown key 'sise'\. Did you mean 'size'\?"):
        build_plug("rewards", plug(f"{own}:Mine", sise=5))


def test_context_that_nobody_offers_is_named(own):
    with pytest.raises(ConfigError, match=r"demands 'window', which there is not.*name"):
        build_plug("rewards", plug(f"{own}:Nested"), name="r")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_module:Mine", "cannot import 'no_such_module'"),
        ("own_plugs:Mien", "has no 'Mien'. Did you mean 'Mine'?"),
        (":Mine", "is not module:Class"),
        ("own_plugs:", "is not module:Class"),
    ],
)
def test_an_own_plug_that_is_not_there(own, name, words):
    with pytest.raises(ConfigError) as caught:
        find_plug("rewards", name)
    assert words in str(caught.value)


def test_options_are_validated_by_the_plugs_config():
    assert 0.28 == validated("algorithms", plug("grpo", clip_high=0.28)).clip_high


def test_an_unknown_option_names_plug_and_nearest():
    with pytest.raises(ConfigError, match=r"algorithms 'grpo': unknown key 'clip_hi'\. Did you mean 'clip_high'\?"):
        validated("algorithms", plug("grpo", clip_hi=0.28))


def test_a_rubric_keeps_order_names_and_weights():
    parts = [config.RewardPart(type="exact"), config.RewardPart(type="number", name="n", weight=0.5, only_if="exact")]
    found = build_rubric(parts).parts
    assert [("exact", 1.0, None), ("n", 0.5, "exact")] == [(p.name, p.weight, p.only_if) for p in found]


@pytest.mark.parametrize(
    ("words", "sections"),
    [
        ("the recipe has none: add a [[rewards]] part", {"rewards": []}),
        ("rollouts.group_size is 1, it must be at least 2", {"rollouts": {"group_size": 1}}),
        ("rollouts.temperature = 0", {"rollouts": {"temperature": 0.0}}),
        ("minibatches = 3 is more than rollouts.prompts_per_step = 2", {"batches": {"minibatches": 3}}),
        (
            "no reduction 'token-men' for its policy loss. Did you mean 'token-mean'?",
            {"algorithm": {"reduction": "token-men"}},
        ),
        ("no plug called 'locl'. Did you mean 'local'?", {"engine": {"type": "locl"}}),
        ("unknown key 'learning_rat'", {"learner": {"type": "local", "learning_rat": 1.0}}),
        ("no plug called 'aliass'", {"weight_sync": {"type": "aliass"}}),
        ("no plug called 'exat'", {"rewards": [{"type": "exat"}]}),
        ("key 'start' is missing", {"rewards": [{"type": "length"}]}),
        (
            "evaluation.k = [8] cannot be estimated from evaluation.samples = 4",
            {"evaluation": {"tasks": {"generator": "addition"}, "k": [1, 8]}},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_contradictions_are_refused_before_a_model_is_loaded(words, sections):
    refused(words, **sections)


def test_more_minibatches_than_demonstrations():
    refused("minibatches = 4 is more than batches.demonstrations_per_step = 3", "sft", batches={"minibatches": 4})


def test_an_evaluation_needs_a_reward():
    refused("evaluation needs a reward", "sft", rewards=[], evaluation={"tasks": {"generator": "addition"}})


def test_a_task_file_that_is_not_there():
    with pytest.raises(DataError, match=r"nowhere\.jsonl"):
        prepare(build_recipe(tasks={"generator": None, "options": {}, "path": "nowhere.jsonl"}))


def test_prompts_are_no_demonstrations():
    with pytest.raises(DataError, match=r"task '0' is a prompt; algorithm 'sft' trains on a demonstration"):
        prepare(build_recipe("sft"), tasks=task_set(ROWS))


def test_demonstrations_are_no_prompts():
    with pytest.raises(DataError, match=r"task '0' is a demonstration; algorithm 'grpo' trains on a prompt"):
        prepare(build_recipe(), tasks=task_set(ROWS, for_imitation=True))


def test_given_tasks_replace_the_recipes():
    tasks = task_set(ROWS)
    assert tasks is prepare(build_recipe(), tasks=tasks).tasks


def test_the_papers_preset_departs_in_nothing():
    assert [] == departures(build_recipe())


def test_departures_are_listed_with_the_papers_value():
    recipe = build_recipe(algorithm={"kl_coefficient": 0.0, "scale": "none"})
    expected = [
        "grpo: scale = none (the paper's preset: group_std)",
        "grpo: kl_coefficient = 0.0 (the paper's preset: 0.04)",
    ]
    assert sorted(expected) == sorted(departures(recipe))


def test_an_option_at_the_papers_value_is_no_departure():
    assert [] == departures(build_recipe(algorithm={"clip_high": 0.2}))


def notes(**sections):
    return " / ".join(prepare(build_recipe(**sections)).notes)


@pytest.mark.parametrize(
    ("words", "sections"),
    [
        ("the ratio is 1 and the clip never acts", {}),
        ("cut the sampled distribution", {"rollouts": {"top_p": 0.9}}),
        ("cut the sampled distribution", {"rollouts": {"min_p": 0.1}}),
        ("9 prompts per step, 8 tasks: tasks repeat", {"rollouts": {"prompts_per_step": 9}}),
    ],
)
def test_choices_worth_saying(words, sections):
    assert words in notes(**sections)


def test_a_second_step_says_nothing_of_the_ratio():
    assert "the ratio is 1" not in notes(batches={"epochs": 2})


def held_out(**tasks):
    return {"evaluation": {"tasks": {"generator": "addition", **tasks}}}


def test_an_evaluation_on_the_training_tasks_is_said():
    assert "8 of 8 held-out tasks are training tasks" in notes(**held_out(options={"size": 8}))


def test_some_shared_tasks_are_counted():
    assert "5 of 5 held-out tasks are training tasks" in notes(**held_out(options={"size": 8}, limit=5))


@pytest.mark.parametrize("tasks", [{"split": "test", "limit": 8}, {"options": {"split": "test"}, "limit": 8}])
def test_held_out_problems_are_not_training_problems(tasks):
    assert "held-out tasks are" not in notes(**held_out(**tasks))


def test_a_demonstrations_prompt_counts():
    training = task_set(ROWS, for_imitation=True)
    assert "2 of 2 held-out tasks are training tasks" in leaks(training, task_set(ROWS[:2]))[0]


def test_without_an_evaluation_nothing_leaks():
    assert [] == leaks(task_set(ROWS), None)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_shipped_recipes_can_be_prepared_without_a_model(path, tmp_path):
    overrides = []
    if "gsm8k" in path.stem:
        pair = {"chosen": "Add them. #### 2", "rejected": "Add them. #### 3"}
        rows = [json.dumps(json.loads(line) | pair) for line in GSM8K.splitlines()]
        (tmp_path / "train.jsonl").write_text("\n".join(rows), encoding="utf-8")
        overrides = [f"tasks.path={tmp_path / 'train.jsonl'}"]
    if "reasoning_gym" in path.stem:
        pytest.importorskip("reasoning_gym")
    prepared = prepare(config.read_recipe(path, overrides))
    assert (True, []) == (len(prepared.tasks) > 0, [n for n in prepared.notes if "held-out tasks are" in n])


@pytest.fixture(scope="module")
def assembly():
    return build_assembly(evaluation={"tasks": {"generator": "addition", "split": "test", "limit": 3}})


def test_engine_and_learner_hold_the_same_weights(assembly):
    assert assembly.engine.aliases(assembly.learner.named_tensors())


def test_the_reference_is_a_model_of_its_own(assembly):
    own = {id(p) for p in assembly.learner.model.parameters()}
    assert not own & {id(p) for p in assembly.learner._reference_model.parameters()}


def test_without_a_kl_there_is_no_reference():
    assert None is build_assembly(algorithm={"kl_coefficient": 0.0}).learner._reference_model


def test_adapters_need_no_second_model():
    assert None is build_assembly(model={"lora": {"rank": 2}}).learner._reference_model


def test_the_models_end_tokens_stop_the_chat_too():
    loaded = build_loaded()
    other = loaded.tokenizer.convert_tokens_to_ids("z")
    both = loaded.__class__(
        **{n: getattr(loaded, n) for n in loaded.__slots__}
        | {"generation_eos_ids": (loaded.tokenizer.eos_token_id, other)}
    )
    assert {other, loaded.tokenizer.eos_token_id} == set(build_assembly(loaded=both).chat.stop_ids)


@pytest.mark.parametrize(("kind", "expected"), [("grpo", 0.5), ("sft", 1.0)])
def test_the_learners_temperature_is_that_of_sampling(kind, expected):
    assert expected == build_assembly(kind, rollouts={"temperature": 0.5}).learner.temperature


def test_the_schedule_knows_every_optimizer_step():
    found = build_assembly(run={"steps": 3}, batches={"epochs": 2, "minibatches": 2})
    assert 12 == found.learner.total_steps


def test_held_out_tasks_come_along(assembly):
    assert (8, 3) == (len(assembly.tasks), len(assembly.held_out))


def test_the_subject_is_the_run_itself(assembly):
    subject = assembly.subject()
    assert (assembly.learner, assembly.engine, 4, 2) == (
        subject.learner,
        subject.engine,
        subject.group_size,
        subject.prompts_per_step,
    )


def rows_of(assembly):
    return {microbatch.layout for microbatch in assembly.pack(ragged_groups(40))}


@pytest.mark.parametrize("layout", ["padded", "packed", "shared"])
def test_a_layout_can_be_chosen(layout):
    assert {layout} == rows_of(build_assembly(batches={"layout": layout}))


def test_a_layout_that_is_not_exact_is_replaced_and_said(monkeypatch):
    monkeypatch.setattr("posttrain.learners.local.supported_layouts", only_padded)
    found = build_assembly(batches={"layout": "shared"})
    assert ({"padded"}, True) == (rows_of(found), any("is not exact on this model" in note for note in found.notes))


def test_auto_takes_only_what_is_exact(monkeypatch):
    monkeypatch.setattr("posttrain.learners.local.supported_layouts", only_padded)
    assert {"padded"} == rows_of(build_assembly())


def only_padded(model):
    found = supported_layouts(model)
    return found.__class__(
        **{name: getattr(found, name) for name in found.__slots__}
        | {"layouts": frozenset({"padded"}), "reason": "told so"}
    )


def test_no_room_for_a_prompt():
    with pytest.raises(
        ConfigError, match="max_new_tokens = 96 leaves no room for a prompt in the model's window of 96"
    ):
        build_assembly(rollouts={"max_new_tokens": 96})


def test_tasks_that_do_not_fit_are_left_out_and_counted():
    long = [*ROWS, {"question": "1" * 100, "answer": "1"}]
    found = assemble(prepare(build_recipe(), tasks=task_set(long)), loaded=build_loaded())
    assert (6, ["tasks left out: 1 overlong"]) == (len(found.tasks), [n for n in found.notes if "left out" in n])


def test_held_out_tasks_that_do_not_fit_are_counted_too():
    long = [*ROWS, {"question": "1" * 100, "answer": "1"}]
    recipe = build_recipe(**held_out(split="test", limit=2))
    found = assemble(prepare(recipe, tasks=task_set(ROWS), held_out=task_set(long)), loaded=build_loaded())
    assert ["held-out tasks left out: 1 overlong"] == [n for n in found.notes if "left out" in n]
