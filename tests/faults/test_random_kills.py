"""Killed from outside at moments that nobody chose, again and again, a run ends with the very same weights."""

import random
import signal
import time

import pytest

from tests.faults.commands import cold
from tests.faults.same_run import assert_nothing_lost, assert_same_run
from tests.faults.test_signals import wait_for_steps
from tests.faults.workplace import PROMPTS, STEPS, VARIANTS


def go_on(workplace, variant, run, **options):
    """Start the run, or continue it if it has begun."""
    if (run / "config.toml").exists():
        return workplace.resume(run, **options)
    return workplace.train(variant, run, **options)


def survive(workplace, variant, run, seconds):
    """Kill the run after each of so many seconds, let it end, compare; return how often it really was killed."""
    expected = workplace.whole(variant)
    kills = 0
    for delay in seconds:
        done = go_on(workplace, variant, run, kill_after=delay)
        assert done.code in (0, -signal.SIGKILL), done.err
        kills += done.code != 0
    done = go_on(workplace, variant, run)
    assert (0, "") == (done.code, done.err)
    assert_same_run(expected, run)
    assert_nothing_lost(run, steps=STEPS, per_step=PROMPTS)
    return kills


def test_three_kills_at_random_moments_change_nothing(workplace, tmp_path):
    draws = random.Random(0)
    begun = time.monotonic()
    workplace.train("minibatches", tmp_path / "timed")
    length = time.monotonic() - begun
    kills = rounds = 0
    while kills < 3:  # a run may be over before it is killed: the next round kills earlier
        delays = [length * draws.uniform(0.1, 0.6) / (1 + rounds) for _ in range(3)]
        kills += survive(workplace, "minibatches", tmp_path / f"run-{rounds}", delays)
        rounds += 1


@pytest.mark.slow
def test_fifty_kills_at_random_moments_change_nothing(workplace, tmp_path):
    draws = random.Random(1)
    kills = rounds = 0
    while kills < 50:
        variant = draws.choice([*VARIANTS])
        delays = [draws.uniform(0.0, 1.2) for _ in range(draws.randint(1, 4))]
        kills += survive(workplace, variant, tmp_path / f"run-{rounds}", delays)
        rounds += 1


@pytest.mark.slow
def test_a_cold_process_killed_from_outside_continues_to_the_same_bits(workplace, tmp_path):
    run = tmp_path / "run"
    words = ("train", "evaluated.toml", f"run.directory={run}", "--no-check")
    with cold(*words, folder=workplace.folder) as process:
        wait_for_steps(run, 1)
        process.kill()
        process.communicate(timeout=60)
    with cold("train", "--resume", run, folder=workplace.folder) as process:
        _, err = process.communicate(timeout=120)
    assert (0, "") == (process.returncode, err)
    assert_same_run(workplace.whole("evaluated"), run)
