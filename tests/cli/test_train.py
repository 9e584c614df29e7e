"""``posttrain train``: the plan of a dry run, a whole run, and its continuation."""

import pytest


def squeezed(text):
    return " ".join(text.split())


@pytest.fixture
def plan(posttrain):
    return posttrain("train", "grpo.toml", "run.steps=6", "batches.epochs=2", "--dry-run")


def test_a_dry_run_shows_the_batch_table(plan):
    rows = (
        "prompts per batch (groups) │ 2",
        "rollouts per batch │ 8",
        "optimizer steps in all │ 12",
        "passes over the tasks │ 3",
    )
    assert [] == [row for row in rows if row not in squeezed(plan.out)]


def test_a_dry_run_shows_the_resolved_recipe(plan):
    rows = ("run.steps │ 6", "algorithm.type │ grpo", "rewards.0.type │ exact", "rollouts.max_new_tokens │ 6")
    assert [] == [row for row in rows if row not in squeezed(plan.out)]


def test_a_dry_run_says_departures(posttrain):
    out = posttrain("train", "grpo.toml", "algorithm.kl_coefficient=0.0", "--dry-run").out
    assert "grpo: kl_coefficient = 0.0 (the paper's preset: 0.04)" in squeezed(out)


def test_a_dry_run_trains_nothing(plan, here):
    assert (0, False) == (plan.code, (here / "runs").exists())


def test_a_dry_run_needs_no_model(posttrain):
    assert 0 == posttrain("train", "grpo.toml", "model.path=no/such/model", "--dry-run").code


def test_a_run_shows_checks_steps_and_where_it_is(posttrain, here):
    done = posttrain("train", "grpo.toml")
    words = ("✓ first-step ratio is 1", "step 2/2", "pass@1", "run directory runs/tiny", "first rollout:")
    assert (0, [], True) == (
        done.code,
        [word for word in words if word not in done.out],
        (here / "runs" / "tiny" / "metrics.jsonl").is_file(),
    )


def test_checks_can_be_skipped(posttrain):
    assert "first-step ratio" not in posttrain("train", "grpo.toml", "--no-check").out


def test_a_run_can_be_continued(posttrain, here):
    posttrain("train", "sft.toml", "--no-check")
    done = posttrain("train", "--resume", "runs/tiny", "--steps", "3")
    lines = (here / "runs" / "tiny" / "metrics.jsonl").read_text().splitlines()
    assert (0, True, 3) == (done.code, "resumed from step 2" in done.out, len(lines))


def test_a_used_directory_is_refused(posttrain):
    posttrain("train", "sft.toml", "run.directory=mine", "--no-check")
    done = posttrain("train", "sft.toml", "run.directory=mine", "--no-check")
    assert (1, True) == (done.code, "Continue it with --resume mine" in squeezed(done.err))


def test_a_failed_check_ends_with_3_and_trains_nothing(posttrain, here, monkeypatch):
    monkeypatch.setattr("posttrain.checks.exactness.tolerance", lambda learner: -1.0)
    done = posttrain("train", "sft.toml")
    assert (3, True, False) == (done.code, "--no-check trains all the same" in done.err, (here / "runs").exists())
