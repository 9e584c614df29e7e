"""The five-line use: what can be passed, what is refused, and what a result holds."""

import subprocess
import sys

import pytest

import posttrain
from posttrain import api, config
from posttrain.errors import ConfigError, DataError, RecordError
from posttrain.measure import reward_parts
from posttrain.tasks.source import task_set
from tests.toy_runs import ROWS, build_loaded, length_reward

SMALL = {
    "steps": 1,
    "group_size": 2,
    "prompts_per_step": 2,
    "max_new_tokens": 3,
    "learning_rate": 1e-2,
    "threads": 1,
    "check": False,
}


def by_rollout(rollout):
    return float(rollout.sampled_count)


def by_group(prompts, completions, answer, **columns):
    return [float(len(text)) for text in completions]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A tiny model on disk, in the current folder."""
    loaded = build_loaded()
    loaded.model.save_pretrained(tmp_path / "model")
    loaded.tokenizer.save_pretrained(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    return "model"


@pytest.fixture
def recipe(monkeypatch):
    """The recipe and tasks that train() would launch."""
    found = {}

    def launch(recipe, **rest):
        found.update(rest, recipe=recipe)
        return found

    monkeypatch.setattr("posttrain.launch.launch", launch)
    return found


def train(**options):
    usual = {"algorithm": "grpo", "model": "toy", "tasks": ROWS, "reward": "exact"}
    return posttrain.train(**usual | options)


def test_the_front_page_loads_no_torch():
    code = "import sys, posttrain; print(posttrain.__version__, 'torch' in sys.modules, 'transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert f"{posttrain.__version__} False False" == done.stdout.strip()


def test_the_front_page_knows_its_verbs_only():
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = posttrain.trian


@pytest.mark.parametrize("reward", [by_rollout, by_group, "exact", [by_rollout, "exact"]], ids=str)
def test_rewards_of_every_kind_train(folder, reward):
    result = posttrain.train(algorithm="grpo", model=folder, tasks=ROWS, reward=reward, **SMALL)
    assert 1 == len(result.steps)


def test_rows_in_memory_are_demonstrations_for_sft(folder):
    result = posttrain.train(algorithm="sft", model=folder, tasks=ROWS, demonstrations_per_step=2, **SMALL)
    assert "loss" in result.steps[0].metrics


def test_conversations_in_memory_are_demonstrations_too(folder):
    rows = [{"messages": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]}]
    assert 1 == len(posttrain.train(algorithm="sft", model=folder, tasks=rows, **SMALL).steps)


def test_a_run_with_rows_and_a_function_is_resumed_with_both(folder):
    def local(rollout):
        return float(rollout.sampled_count)

    result = posttrain.train(algorithm="grpo", model=folder, tasks=ROWS, reward=local, **SMALL)
    again = posttrain.resume(result.directory, tasks=ROWS, reward=local, steps=2)
    assert [1, 2] == [record.step for record in again.steps]


def test_a_run_with_rows_is_not_resumed_without(folder):
    result = posttrain.train(algorithm="grpo", model=folder, tasks=ROWS, reward=length_reward, **SMALL)
    with pytest.raises(RecordError, match=r"began with tasks in memory.*posttrain\.resume\(run, tasks="):
        posttrain.resume(result.directory, steps=2)


def test_a_run_is_not_resumed_with_other_rows(folder):
    result = posttrain.train(algorithm="grpo", model=folder, tasks=ROWS, reward=length_reward, **SMALL)
    with pytest.raises(RecordError, match="began with other tasks"):
        posttrain.resume(result.directory, tasks=ROWS[:3], steps=2)


def test_a_function_with_a_name_is_found_again(folder):
    result = posttrain.train(algorithm="grpo", model=folder, tasks=ROWS, reward=length_reward, **SMALL)
    assert 2 == len(posttrain.resume(result.directory, tasks=ROWS, steps=2).steps)


def test_a_finished_run_can_be_measured(folder):
    result = posttrain.train(algorithm="grpo", model=folder, tasks=ROWS, reward="exact", **SMALL)
    found = posttrain.evaluate(result.directory, tasks=ROWS[:2], samples=2)
    assert (2, 2) == (len(found.prompts), found.fingerprint.samples)


@pytest.mark.parametrize(("name", "place"), sorted(api.SHORTCUTS.items()))
def test_short_names_exist_in_the_recipe(name, place):
    section, key = place
    assert section == "learner" or key in config.Recipe.model_fields[section].annotation.model_fields


def test_short_names_reach_their_key(recipe):
    train(steps=7, group_size=3, temperature=0.5, learning_rate=1e-3, seed=4)
    found = recipe["recipe"]
    assert (7, 3, 0.5, 1e-3, 4) == (
        found.run.steps,
        found.rollouts.group_size,
        found.rollouts.temperature,
        found.learner.options["learning_rate"],
        found.run.seed,
    )


def test_sections_and_short_names_add_up(recipe):
    train(learner={"weight_decay": 0.1}, learning_rate=1e-3, rollouts={"group_size": 3}, max_new_tokens=4)
    found = recipe["recipe"]
    assert ({"weight_decay": 0.1, "learning_rate": 1e-3}, 3, 4) == (
        found.learner.options,
        found.rollouts.group_size,
        found.rollouts.max_new_tokens,
    )


def test_a_directory_may_be_a_path(recipe, tmp_path):
    train(directory=tmp_path)
    assert str(tmp_path) == recipe["recipe"].run.directory


def test_algorithm_and_model_may_be_sections(recipe):
    train(algorithm={"type": "grpo", "clip_high": 0.3}, model={"path": "toy", "dtype": "float64"})
    found = recipe["recipe"]
    assert ({"clip_high": 0.3}, "float64") == (found.algorithm.options, found.model.dtype)


@pytest.mark.parametrize(
    ("tasks", "path"), [("a.jsonl", "a.jsonl"), ({"path": "b.jsonl"}, "b.jsonl"), (ROWS, "<memory>")]
)
def test_tasks_of_every_kind(recipe, tasks, path):
    train(tasks=tasks)
    assert path == recipe["recipe"].tasks.path


def test_a_task_set_is_taken_as_it_is(recipe):
    tasks = task_set(ROWS)
    assert tasks is train(tasks=tasks)["tasks"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stpes": 3}, "has no option 'stpes'. Did you mean 'steps'?"),
        ({"rewards": ["exact"]}, "as reward=..."),
        ({"rollouts": 3}, "'rollouts' is a section; give a dict, got 3"),
        ({"run": {"stpes": 3}}, "unknown key 'run.stpes'. Did you mean 'steps'?"),
        ({"steps": 0}, "key 'run.steps'"),
        ({"algorithm": "grpo2", "tasks": ROWS}, "no plug called 'grpo2'. Did you mean 'grpo'?"),
        ({"algorithm": {"clip_high": 0.2}}, "key 'type' is missing"),
        ({"reward": {"tpye": "exact"}}, "key 'type' is missing"),
    ],
    ids=str,
)
def test_what_is_refused(recipe, options, words):
    with pytest.raises(ConfigError) as caught:
        train(**options)
    assert words in str(caught.value)


def test_rows_that_are_no_rows():
    with pytest.raises(DataError):
        train(tasks=[3])


def test_reward_parts_have_names():
    def unnamed(rollout):
        return 1.0

    found = reward_parts([unnamed, "exact", {"type": "number", "weight": 0.5}, config.RewardPart(type="format")])
    assert [("function", "unnamed"), ("exact", None), ("number", None), ("format", None)] == [
        (part.type, part.name) for part in found
    ]


def test_no_reward_has_no_parts():
    assert () == reward_parts(None)
