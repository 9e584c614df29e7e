"""A reward that fails never becomes a number: the run stops with its reasons, and what was trained is kept."""

import pytest

from tests.faults.same_run import assert_same_run, entries, newest, rows
from tests.faults.test_bad_recipes import assert_refused
from tests.faults.workplace import PROMPTS, STEPS

BROKEN = {
    "nan": "returned nan",
    "text": "returned str 'good'",
    "none": "no part applied",
    "raising": "the judge is out",
    "too_few": "returned 1 values for 4",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_reward_stops_the_run(workplace, tmp_path, name):
    run = tmp_path / "run"
    done = workplace.train("plain", run, f"rewards.0.function=my_rewards:{name}")
    assert_refused(done, "12 of 12 rollouts have no reward", BROKEN[name], f"--resume {run}", code=1)
    assert [] == rows(run / "metrics.jsonl")
    assert PROMPTS == len(entries(run))


def test_a_reward_that_raises_in_its_own_process_stops_the_run(workplace, tmp_path):
    done = workplace.train("plain", tmp_path / "run", "rewards.0.function=my_rewards:raising", "rewards.0.inline=false")
    assert_refused(done, "the judge is out", code=1)


def test_a_reward_that_hangs_is_killed_and_stops_the_run(workplace, tmp_path):
    overrides = ("function=my_rewards:hanging", "inline=false", "timeout_seconds=0.1", "attempts=1", "workers=12")
    done = workplace.train("plain", tmp_path / "run", *(f"rewards.0.{override}" for override in overrides))
    assert_refused(done, "still running after 0.1 s", code=1)
    assert done.seconds < 60


def test_a_reward_that_breaks_later_keeps_what_was_trained(workplace, tmp_path):
    run = tmp_path / "run"
    done = workplace.train("plain", run, "rewards.0.function=my_rewards:raising_later", "run.checkpoint_every=50")
    assert_refused(done, "the judge has gone home", f"--resume {run}", code=1)
    assert "step-000002" == newest(run).name
    assert 1 == workplace.resume(run).code
    assert "step-000004" == newest(run).name
    assert 0 == workplace.resume(run).code
    assert STEPS == len(rows(run / "metrics.jsonl"))
    assert_same_run(workplace.whole("plain"), run)


def test_a_reward_that_fails_a_few_times_drops_only_those_rollouts(workplace, tmp_path):
    (workplace.folder / "sometimes.py").write_text(
        "def picky(rollout):\n    if rollout.index == 0:\n        raise ValueError('not this one')\n    return 1.0\n"
    )
    run = tmp_path / "run"
    done = workplace.train("plain", run, "rewards.0.function=sometimes:picky", "run.steps=1")
    assert (0, "") == (done.code, done.err)
    (row,) = rows(run / "metrics.jsonl")
    assert PROMPTS == row["rollouts/failed"]
