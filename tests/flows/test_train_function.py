"""The five-line use: rewards that are Python functions, tasks in memory, and runs of them that continue."""

import sys

import pytest

import posttrain
from posttrain.config import read_recipe
from posttrain.errors import ConfigError, DataError, PosttrainError, RecordError
from posttrain.launch import launch
from tests.faults.same_run import assert_same_checkpoint, assert_same_run, newest, untimed
from tests.flows.conftest import online

ROWS = [{"question": f"{a}+{b}=", "answer": str(a + b), "kind": "sum"} for a in range(3) for b in range(3)]
SMALL = {"group_size": 4, "prompts_per_step": 2, "max_new_tokens": 4, "learning_rate": 1e-2, "check": False}


def digits(rollout):
    return sum(letter.isdigit() for letter in rollout.text) / 4


def trl_style(prompts, completions, kind, answer, **columns):
    assert ["sum"] * len(completions) == kind
    return [float(text == right) - 0.1 * len(text) for text, right in zip(completions, answer, strict=True)]


def test_five_lines_train_on_a_function_of_a_rollout(model, here):
    run = posttrain.train(algorithm="grpo", model=model, tasks=ROWS, reward=digits, steps=2, **SMALL)
    assert here / "runs" / "run" == here / run.directory
    assert 2 == len(run.steps)
    assert "reward/digits/mean" in run.steps[0].metrics


def test_a_trl_style_function_sees_the_columns(model, here):
    run = posttrain.train(algorithm="grpo", model=model, tasks=ROWS, reward=trl_style, steps=1, **SMALL)
    assert 0 == run.steps[0].metrics["rollouts/failed"]
    assert run.steps[0].metrics["reward/mean"] < 0.0


def test_several_rewards_are_parts(model, here):
    parts = ["exact", digits, {"type": "length", "start": 1, "end": 4, "weight": 0.5}]
    run = posttrain.train(algorithm="grpo", model=model, tasks=ROWS, reward=parts, steps=1, **SMALL)
    assert {"reward/exact/mean", "reward/digits/mean", "reward/length/mean"} <= run.steps[0].metrics.keys()


def test_rows_in_memory_are_demonstrations_for_imitation(model, here):
    run = posttrain.train(algorithm="sft", model=model, tasks=ROWS, steps=2, demonstrations_per_step=4, check=False)
    assert run.steps[1].metrics["loss"] > 0


def test_a_file_of_tasks_works_too(model, here):
    (here / "tasks.jsonl").write_text('{"question": "1+1=", "answer": "2"}\n')
    run = posttrain.train(algorithm="grpo", model=model, tasks="tasks.jsonl", reward="exact", steps=1, **SMALL)
    assert 1 == len(run.steps)


def test_the_recipe_on_record_names_the_function(model, here):
    run = posttrain.train(algorithm="grpo", model=model, tasks=ROWS, reward=digits, steps=1, **SMALL)
    (part,) = read_recipe(run.directory / "config.toml").rewards
    assert f"{__name__}:digits" == part.options["function"]


def test_a_reward_that_can_be_learnt_is_learnt(model, here):
    options = SMALL | {"group_size": 8, "prompts_per_step": 4, "learning_rate": 3e-2}
    algorithm = {"type": "grpo", "kl_coefficient": 0.0}
    run = posttrain.train(algorithm=algorithm, model=model, tasks=ROWS, reward=digits, steps=10, **options)
    rewards = [record.metrics["reward/mean"] for record in run.steps]
    assert max(rewards[:2]) < 0.3
    assert min(rewards[-2:]) > 0.7


def whole_and_parts(model, here, function, **given):
    """One run of three steps, and one of a step that is continued to three."""
    options = SMALL | {"algorithm": "grpo", "model": model, "tasks": ROWS, "reward": function}
    whole = posttrain.train(**options, steps=3, directory=here / "whole")
    part = posttrain.train(**options, steps=1, directory=here / "part")
    posttrain.resume(part.directory, steps=3, tasks=ROWS, **given)
    assert_same_run(whole.directory, part.directory)


def test_a_run_with_a_function_that_can_be_imported_continues(model, here):
    whole_and_parts(model, here, digits)


def test_a_run_with_a_function_from_nowhere_continues_when_it_is_given_again(model, here):
    reward = local_function()
    whole_and_parts(model, here, reward, reward=reward)


def local_function():
    return lambda rollout: len(set(rollout.text)) / 4


@pytest.mark.parametrize("make", [local_function, lambda: Caller()], ids=["lambda", "object"])
def test_a_function_from_nowhere_has_to_be_given_again(model, here, make):
    run = posttrain.train(algorithm="grpo", model=model, tasks=ROWS, reward=make(), steps=1, **SMALL)
    with pytest.raises(ConfigError, match=r"reward=") as caught:
        posttrain.resume(run.directory, steps=2, tasks=ROWS)
    assert "posttrain.resume" in str(caught.value)


class Caller:
    """A callable object."""

    def __call__(self, rollout):
        return 1.0


def test_tasks_in_memory_have_to_be_given_again(model, here):
    run = posttrain.train(algorithm="grpo", model=model, tasks=ROWS, reward=digits, steps=1, **SMALL)
    with pytest.raises(RecordError, match="tasks="):
        posttrain.resume(run.directory, steps=2)


def test_other_tasks_in_memory_are_refused(model, here):
    run = posttrain.train(algorithm="grpo", model=model, tasks=ROWS, reward=digits, steps=1, **SMALL)
    with pytest.raises(RecordError, match="other tasks"):
        posttrain.resume(run.directory, steps=2, tasks=ROWS[1:])


def test_an_option_that_is_none_stays_none_in_the_continued_run(model, here):
    learner = {"learning_rate": 1e-2, "max_grad_norm": None}
    options = {**SMALL, "algorithm": "grpo", "model": model, "tasks": ROWS, "reward": digits, "learner": learner}
    run = posttrain.train(**options, steps=1)
    assert "none" == read_recipe(run.directory / "config.toml").learner.options["max_grad_norm"]
    whole = posttrain.train(**options, steps=2, directory=here / "whole")
    posttrain.resume(run.directory, steps=2, tasks=ROWS)
    assert_same_run(whole.directory, run.directory)


def test_more_prompts_than_tasks_repeat_within_a_step(model, here):
    options = SMALL | {"prompts_per_step": 5, "group_size": 2}
    run = posttrain.train(algorithm="grpo", model=model, tasks=ROWS[:2], reward=digits, steps=2, **options)
    assert [5.0, 5.0] == [record.metrics["groups/count"] for record in run.steps]


def test_the_checks_run_first_and_are_returned(model, here):
    run = posttrain.train(algorithm="grpo", model=model, tasks=ROWS, reward=digits, steps=1, **SMALL | {"check": True})
    assert run.checks
    assert all(result.status != "fail" for result in run.checks)


def test_checks_leave_no_trace_in_the_weights(model, here):
    options = SMALL | {"algorithm": "grpo", "model": model, "tasks": ROWS, "reward": digits, "steps": 2}
    plain = posttrain.train(**options, directory=here / "plain")
    checked = posttrain.train(**options | {"check": True}, directory=here / "checked")
    assert_same_checkpoint(newest(plain.directory), newest(checked.directory))
    assert untimed(plain.directory) == untimed(checked.directory)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"stepz": 3}, "Did you mean 'steps'"),
        ({"rollouts": 3}, "section"),
        ({"reward": 3}, "reward"),
        ({"reward": None}, "reward"),
        ({"algorithm": "grop"}, "Did you mean 'grpo'"),
        ({"tasks": []}, "no tasks"),
    ],
)
def test_a_call_that_cannot_run_is_refused(model, here, options, error):
    with pytest.raises((ConfigError, DataError), match=error):
        posttrain.train(**{"algorithm": "grpo", "model": model, "tasks": ROWS, "reward": digits} | options)
    assert not (here / "runs").exists()


def test_every_refusal_is_of_one_kind():
    assert issubclass(ConfigError, PosttrainError)
    assert issubclass(DataError, PosttrainError)


def test_own_modules_are_plugs(model, here):
    (here / "own_parts.py").write_text(PARTS)
    sys.modules.pop("own_parts", None)
    recipe = online(
        model,
        engine={"type": "own_parts:Parrot"},
        rewards=[{"type": "own_parts:Vowels", "bonus": 2.0, "name": "vowels"}],
        run={"steps": 2, "directory": str(here / "run")},
    )
    result = launch(recipe, check=False)
    assert 2 == len(result.steps)
    assert 2.0 == result.steps[0].metrics["reward/vowels/mean"]
    assert 3.0 == result.steps[0].metrics["length/mean"]
    assert recipe == read_recipe(result.directory / "config.toml")


PARTS = """
from posttrain.config import Settings
from posttrain.engines.scripted import Config, ScriptedEngine
from posttrain.types import Outcome, Score


class Parrot(ScriptedEngine):
    Config = Config

    def __init__(self, config, tokenizer, stop_ids, window):
        super().__init__(config, stop_ids, window)
        self.answer = lambda prompt: (*tokenizer.encode("ab", add_special_tokens=False), min(stop_ids))


class Vowels:
    class Config(Settings):
        bonus: float = 1.0

    def __init__(self, config, name):
        self.config, self.name = config, name

    async def score(self, rollouts, task):
        values = [self.config.bonus * sum(letter in "aeiou" for letter in r.text) for r in rollouts]
        return [Score(name=self.name, value=value, outcome=Outcome.SCORED) for value in values]
"""
