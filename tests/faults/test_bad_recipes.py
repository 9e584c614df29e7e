"""A recipe that cannot run is refused in one clear message before anything is made."""

import pytest
import tomli_w

from tests.faults.commands import Done
from tests.faults.workplace import ONLINE

OVERRIDES = {
    "unknown key": (["rollouts.group_sise=4"], "Did you mean 'group_size'?"),
    "unknown section": (["rollout.group_size=4"], "Did you mean 'rollouts'?"),
    "unknown key of a plug": (["learner.learning_rat=1.0"], "Did you mean 'learning_rate'?"),
    "unknown plug": (["algorithm.type=grop"], "Did you mean 'grpo'?"),
    "unknown reward": (["rewards.0.type=exakt", "rewards.0.name=a"], "Did you mean 'exact'?"),
    "own plug that cannot be imported": (["algorithm.type=nowhere:Mine"], "nowhere"),
    "own plug that is not there": (["algorithm.type=my_rewards:digitz"], "Did you mean 'digits'?"),
    "reward module that cannot be imported": (["rewards.0.function=nowhere:f"], "nowhere"),
    "reward function that is not there": (["rewards.0.function=my_rewards:digitz"], "Did you mean 'digits'?"),
    "override without a value": (["run.steps"], "key=value"),
    "override of a list item that is not there": (["rewards.3.weight=1"], "rewards.3.weight"),
    "group of one": (["rollouts.group_size=1"], "at least 2"),
    "temperature 0": (["rollouts.temperature=0"], "temperature"),
    "more minibatches than prompts": (["batches.minibatches=4"], "prompts_per_step"),
    "no steps": (["run.steps=0"], "run.steps"),
    "text for a number": (["run.steps=many"], "'many'"),
    "k beyond the samples": (
        ["evaluation.tasks.path=held_out.jsonl", "evaluation.samples=2", "evaluation.k=[4]"],
        "evaluation.samples",
    ),
    "two sources of tasks": (["tasks.generator=maximum"], "exactly one"),
    "no room for a prompt": (["rollouts.max_new_tokens=64"], "no room"),
}


def assert_refused(done: Done, *fragments: str, code: int = 2) -> None:
    """A message with the fragments, the exit code, and no traceback."""
    assert "Traceback" not in done.err
    assert "Traceback" not in done.out
    for fragment in fragments:
        assert fragment in done.err
    assert code == done.code


@pytest.mark.parametrize("fault", OVERRIDES)
def test_a_bad_recipe_is_refused(workplace, tmp_path, fault):
    overrides, fragment = OVERRIDES[fault]
    assert_refused(workplace.train("plain", tmp_path / "run", *overrides), fragment)
    assert not (tmp_path / "run").exists()


def test_a_recipe_that_does_not_exist_is_refused(workplace):
    assert_refused(workplace.server.run("train", "nowhere.toml", folder=workplace.folder), "nowhere.toml")


def test_a_recipe_that_is_not_toml_is_refused_with_its_line(workplace):
    (workplace.folder / "broken.toml").write_text("[run]\nsteps = = 3\n")
    assert_refused(workplace.server.run("train", "broken.toml", folder=workplace.folder), "broken.toml", "line 2")


def test_training_on_rewards_without_a_reward_is_refused(workplace):
    (workplace.folder / "unrewarded.toml").write_text(tomli_w.dumps(ONLINE | {"rewards": []}))
    done = workplace.server.run("train", "unrewarded.toml", "--dry-run", folder=workplace.folder)
    assert_refused(done, "[[rewards]]")


def test_train_without_a_recipe_says_what_to_give(workplace):
    assert_refused(workplace.server.run("train", folder=workplace.folder), "recipe", "--resume")


def test_a_run_directory_that_exists_is_refused_and_untouched(workplace):
    run = workplace.whole("plain")
    before = sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*"))
    assert_refused(workplace.train("plain", run), f"--resume {run}", code=1)
    assert before == sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*"))


def test_eval_of_a_k_beyond_its_samples_is_refused(workplace):
    words = ("eval", "model", "--tasks", "held_out.jsonl", "--reward", "exact", "-k", "8", "--samples", "2")
    assert_refused(workplace.server.run(*words, folder=workplace.folder), "8", "--samples")


def test_eval_of_a_k_that_is_no_number_is_refused(workplace):
    words = ("eval", "model", "--tasks", "held_out.jsonl", "--reward", "exact", "-k", "one")
    assert_refused(workplace.server.run(*words, folder=workplace.folder), "'one'")


def test_eval_of_a_folder_that_is_no_model_is_refused(workplace, tmp_path):
    words = ("eval", tmp_path, "--tasks", "held_out.jsonl", "--reward", "exact")
    assert_refused(workplace.server.run(*words, folder=workplace.folder), str(tmp_path))


def test_eval_without_tasks_says_what_to_give(workplace):
    assert_refused(workplace.server.run("eval", "model", folder=workplace.folder), "--tasks")
