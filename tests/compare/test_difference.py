"""Cosine, ratio and shares of two effects, the merged list of terms, and the stable JSON."""

import json
import math

import pytest

from posttrain.compare.difference import SCHEMA, compare, cosine, merged, numbers_of
from posttrain.compare.effect import Effect
from posttrain.compare.sides import resolve
from posttrain.compare.stored import packaged
from posttrain.errors import RewardError

BATCH = packaged()
NO_KL = ["kl_coefficient=0.0"]


def effect(*coefficients):
    keys = [(0, 0, 0, place) for place in range(len(coefficients))]
    found = {key: value for key, value in zip(keys, coefficients, strict=True) if value is not None}
    return Effect(advantages=dict.fromkeys(found, 1.0), coefficients=found, loss=0.0)


def views(a, b, *, change_a=(), change_b=()):
    found = compare(resolve(a, change_a), resolve(b, change_b), BATCH)
    return {view.state: view.numbers for view in found.views}


def test_a_multiple_has_cosine_one_and_its_factor_as_ratio():
    numbers = numbers_of(effect(1.0, -2.0), effect(3.0, -6.0))
    assert (pytest.approx(1.0), pytest.approx(3.0), 0.0) == (numbers.cosine, numbers.ratio, numbers.resized)


def test_opposite_and_one_sided_tokens_are_counted_over_all():
    numbers = numbers_of(effect(1.0, 1.0, 1.0, 0.0), effect(1.0, -1.0, None, 1.0))
    assert (0.25, 0.25, 0.25, 4) == (numbers.opposite, numbers.only_a, numbers.only_b, numbers.tokens)


def test_a_token_that_changes_its_share_more_than_twofold_is_resized():
    numbers = numbers_of(effect(1.0, 1.0, 1.0, 1.0), effect(1.0, 1.0, 1.0, 9.0))
    assert 0.75 == numbers.resized


def test_the_most_changed_token_comes_first():
    numbers = numbers_of(effect(1.0, 1.0, 1.0), effect(1.0, 1.0, -4.0))
    assert (0, 0, 0, 2) == numbers.most_changed[0]


def test_equal_effects_change_no_token():
    assert () == numbers_of(effect(1.0, 2.0), effect(1.0, 2.0)).most_changed


def test_a_zero_gradient_has_no_direction():
    numbers = numbers_of(effect(0.0, 0.0), effect(1.0, 1.0))
    assert (None, None) == (numbers.cosine, numbers.ratio)


def test_a_cosine_never_leaves_its_range():
    values = pytest.importorskip("numpy").full(3, 0.1)
    norm = math.sqrt(0.03)
    assert 1.0 >= cosine(values, values, (norm * (1 - 1e-16), norm))


def test_two_lists_are_merged_in_order():
    assert ["a", "b", "x", "c", "y"] == merged(["a", "b", "c", "y"], ["b", "x", "c"])
    assert ["x", "a"] == merged(["a"], ["x"])


def test_the_population_standard_deviation_is_a_factor_of_the_group_size():
    numbers = views("verl-0.10", "rllm")["first_step"]
    assert pytest.approx(math.sqrt(8 / 7), abs=1e-4) == numbers.ratio
    assert pytest.approx(1.0) == numbers.cosine


def test_leaving_one_out_is_a_factor_of_the_group_size():
    found = views("grpo", "grpo", change_a=NO_KL, change_b=[*NO_KL, "centre=leave_one_out"])
    assert pytest.approx(8 / 7) == found["first_step"].ratio


def test_a_sum_over_tokens_is_as_many_times_a_mean_as_there_are_tokens():
    numbers = views("open-instruct", "tinker-cookbook", change_a=NO_KL)["first_step"]
    count = sum(rollout.sampled_count for group in BATCH.groups for rollout in group.rollouts)
    assert pytest.approx(count) == numbers.ratio


def test_one_negative_makes_s_dpo_dpo():
    for numbers in views("dpo", "s_dpo").values():
        assert (pytest.approx(1.0), pytest.approx(1.0)) == (numbers.cosine, numbers.ratio)


def test_in_the_first_step_gspo_is_grpo():
    numbers = views("grpo", "gspo", change_a=NO_KL)["first_step"]
    assert (pytest.approx(1.0), pytest.approx(1.0)) == (numbers.cosine, numbers.ratio)


def test_later_the_clips_differ():
    assert 0 < views("grpo", "cispo", change_a=NO_KL)["later_step"].only_b


def test_terms_that_differ_are_those_that_were_changed():
    found = compare(resolve("grpo"), resolve("grpo", ["clip_high=0.28"]), None)
    assert ["clip"] == [term for term, _, _ in found.differing]


def test_a_term_that_one_side_lacks_reads_none():
    found = {term: (a, b) for term, a, b in compare(resolve("sft"), resolve("grpo"), None).terms}
    assert "none" == found["clip"][0]


def test_a_default_that_the_other_side_has_no_word_for_is_left_out():
    found = {term for term, _, _ in compare(resolve("dpo"), resolve("grpo"), None).terms}
    assert "smoothing" not in found


def test_a_changed_option_is_shown_all_the_same():
    found = {term: a for term, a, _ in compare(resolve("dpo", ["smoothing=0.01"]), resolve("grpo"), None).terms}
    assert "0.01" in found["smoothing"]


def test_what_cannot_be_computed_is_said():
    found = compare(resolve("grpo"), resolve("plackett_luce"), BATCH)
    assert ((), True) == (found.views, "rankings" in found.not_compared[0])


def test_an_algorithm_that_refuses_the_batch_is_quoted(monkeypatch):
    side = resolve("grpo")

    def refuse(groups):
        raise RewardError("these rewards are not for me")

    monkeypatch.setattr(side.algorithm, "advantages", refuse)
    assert ("these rewards are not for me",) == compare(side, resolve("grpo"), BATCH).not_compared


def test_the_json_is_stable_and_plain():
    table = compare(resolve("grpo"), resolve("trl-1.16"), BATCH).to_json()
    assert SCHEMA == table["schema"]
    assert {"schema", "a", "b", "terms", "batch", "not_compared", "effects"} == table.keys()
    assert ["first_step", "later_step"] == list(table["effects"])
    assert {
        "tokens",
        "gradient_cosine",
        "learning_rate_ratio",
        "share",
        "loss",
        "notes",
        "most_changed",
        "per_token",
    } == (table["effects"]["first_step"].keys())
    assert table == json.loads(json.dumps(table, allow_nan=False))


def test_every_token_has_both_advantages_and_coefficients_in_the_json():
    rows = compare(resolve("verl-0.10"), resolve("grpo"), BATCH).to_json()["effects"]["first_step"]["per_token"]
    names = {"group", "rollout", "segment", "place", "piece", "advantage_a", "advantage_b"}
    assert names | {"coefficient_a", "coefficient_b"} == rows[0].keys()
    assert {None} < {row["advantage_a"] for row in rows}
