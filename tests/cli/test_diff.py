"""`posttrain diff` as a user meets it: tables, JSON, a run's step, a figure, and mistakes answered."""

import json

import pytest


def test_two_algorithms_are_compared_in_terms_and_numbers(posttrain):
    done = posttrain("diff", "grpo", "dr_grpo")
    assert 0 == done.code
    for words in (
        "terms that differ",
        "reduction",
        "gradient cosine",
        "learning-rate ratio",
        "tokens that change most",
    ):
        assert words in done.out


def test_a_preset_shows_version_source_and_what_is_left_behind(posttrain):
    done = posttrain("diff", "grpo", "verl-0.10")
    assert "verl/trainer/ppo/core_algos.py" in done.out
    assert "a group of one keeps its raw reward" in done.out


def test_options_of_each_side_can_be_changed(posttrain):
    done = posttrain("diff", "grpo", "grpo", "--a", "clip_high=0.3", "--b", "epsilon=1e-4", "--terms")
    assert "grpo (clip_high=0.3)" in done.out
    assert "grpo (epsilon=1e-4)" in done.out


def test_equal_sides_differ_in_nothing(posttrain):
    assert "no term differs" in posttrain("diff", "grpo", "grpo", "--terms").out


def test_terms_alone_compare_no_batch(posttrain):
    assert "gradient cosine" not in posttrain("diff", "grpo", "dapo", "--terms").out


def test_json_is_one_object_on_standard_output(posttrain):
    table = json.loads(posttrain("diff", "grpo", "trl-1.16", "--json").out)
    assert ("posttrain.diff/1", "grpo", "trl-1.16") == (table["schema"], table["a"]["label"], table["b"]["label"])
    assert 0 < table["effects"]["first_step"]["learning_rate_ratio"]


def test_recipes_are_compared_with_their_batches(posttrain):
    done = posttrain("diff", "grpo.toml", "sft.toml", "--terms")
    assert "learning rate" in done.out
    assert "2 prompts x 4 rollouts" in done.out


def test_a_stored_step_of_a_run_is_compared(posttrain, finished):
    done = posttrain("diff", finished, "dr_grpo", "--run", finished, "--step", "1")
    assert 0 == done.code
    assert f"step 1 of {finished}" in done.out
    assert "only the first step, ratio 1" in done.out


def test_what_a_run_did_not_store_is_said(posttrain, finished):
    done = posttrain("diff", "ppo", "grpo", "--run", finished, "--step", "1")
    assert (0, True) == (done.code, "no numbers: ppo: it needs" in done.out)


def test_a_figure_is_drawn(posttrain, here):
    pytest.importorskip("matplotlib")
    done = posttrain("diff", "grpo", "dr_grpo", "--figure", "out.svg")
    assert "figure: out.svg" in done.out
    assert "<svg" in (here / "out.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("grpo", "grpoo"), "Did you mean 'grpo'"),
        (("grpo", "dapo", "--run", "runs/x"), "--run RUN and --step N belong together"),
        (("grpo", "dapo", "--step", "3"), "--run RUN and --step N belong together"),
        (("grpo", "dapo", "--terms", "--figure", "a.png"), "--terms compares no batch"),
        (("grpo", "dapo", "--figure", "a.bmp"), "must end in one of"),
        (("grpo", "dapo", "--b", "clip_hi=1"), "unknown key 'clip_hi'"),
        (("grpo", "dapo", "--b", "clip_high"), "is not key=value"),
    ],
)
def test_mistakes_are_answered_without_a_traceback(words, message, posttrain):
    done = posttrain("diff", *words)
    assert (2, True, "") == (done.code, message in done.err, done.out)
