"""Reward models: pair and step losses, where the score is read, ensembles, accuracy and calibration."""

import math

import pytest
import torch

from posttrain.functional.masked import flatten
from posttrain.functional.preference_lists import all_pairs, plackett_luce
from posttrain.functional.reward_ensembles import combine, disagreement, normalise_members
from posttrain.functional.reward_models import (
    bradley_terry,
    last_token,
    rollout_labels,
    step_losses,
    two_class_step_losses,
    until_first_error,
)
from posttrain.functional.reward_quality import calibration_error, pair_accuracy, pair_calibration_error
from tests.golden.fixtures_preference import (
    CHOSEN_SCORES,
    MARGINS,
    MEMBER_REFERENCE,
    MEMBERS,
    REJECTED_SCORES,
    SOFT_LABELS,
    STEP_LOGITS,
    f64,
)


def test_bradley_terry_gradient_is_minus_the_chance_of_being_wrong():
    chosen = CHOSEN_SCORES.clone().requires_grad_()
    bradley_terry(chosen, REJECTED_SCORES, margin=MARGINS).sum().backward()
    expected = -torch.sigmoid(-(CHOSEN_SCORES - REJECTED_SCORES - MARGINS))
    assert expected.tolist() == pytest.approx(chosen.grad.tolist())


def test_a_constant_per_prompt_is_free_until_centring_asks_for_zero():
    moved = bradley_terry(CHOSEN_SCORES + 5, REJECTED_SCORES + 5)
    assert bradley_terry(CHOSEN_SCORES, REJECTED_SCORES).tolist() == pytest.approx(moved.tolist())
    centred = bradley_terry(CHOSEN_SCORES + 5, REJECTED_SCORES + 5, centring=0.01)
    assert bool((centred > moved).all())


def test_centring_pulls_both_scores_to_zero_together():
    scores = [f64([2.0]).requires_grad_(), f64([2.0]).requires_grad_()]
    bradley_terry(scores[0], scores[1], centring=0.01).sum().backward()
    assert pytest.approx(float(scores[0].grad + scores[1].grad)) == 2 * 2 * 0.01 * 4


def test_two_ranked_answers_are_a_bradley_terry_pair():
    scores = torch.stack([CHOSEN_SCORES, REJECTED_SCORES], dim=1).flatten()
    groups, ranks = torch.arange(3).repeat_interleave(2), torch.tensor([0, 1] * 3)
    expected = bradley_terry(CHOSEN_SCORES, REJECTED_SCORES).tolist()
    assert expected == pytest.approx(plackett_luce(scores, ranks, groups, 3).tolist())
    assert expected == pytest.approx(all_pairs(scores, ranks, groups, 3).tolist())


@pytest.mark.parametrize("mask", [[[0, 1, 1, 0], [1, 1, 1, 1]], [[0, 0, 1, 1], [1, 1, 1, 1]]], ids=["right", "left"])
def test_the_score_is_read_at_the_last_trained_token_on_either_padding_side(mask):
    mask = torch.tensor(mask, dtype=torch.bool)
    values = torch.full((2, 4), math.nan, dtype=torch.float64)
    values[mask] = torch.arange(6, dtype=torch.float64)
    rows, tokens = flatten(mask, values)
    assert [1.0, 5.0] == last_token(tokens, rows, 2).tolist()


def test_a_row_without_tokens_has_no_score():
    with pytest.raises(ValueError, match=r"rows \[1\]"):
        last_token(f64([1.0, 2.0]), torch.tensor([0, 2]), 3)


def test_the_last_token_of_unordered_rows_is_unknown():
    with pytest.raises(ValueError, match="ascending"):
        last_token(f64([1.0, 2.0]), torch.tensor([1, 0]), 2)


def test_step_gradient_is_probability_minus_label():
    logits = STEP_LOGITS.clone().requires_grad_()
    step_losses(logits, SOFT_LABELS).sum().backward()
    assert (STEP_LOGITS.sigmoid() - SOFT_LABELS).tolist() == pytest.approx(logits.grad.tolist())


def test_soft_labels_cannot_cost_less_than_their_entropy():
    perfect = step_losses(torch.logit(SOFT_LABELS), SOFT_LABELS)
    entropy = -(SOFT_LABELS * SOFT_LABELS.log() + (1 - SOFT_LABELS) * (1 - SOFT_LABELS).log())
    assert entropy.tolist() == pytest.approx(perfect.tolist())


def test_step_losses_of_extreme_logits_stay_finite():
    assert [900.0, 0.0] == step_losses(f64([-900.0, 900.0]), f64([1.0, 1.0])).tolist()


@pytest.mark.parametrize("label", [-100.0, 1.5, math.nan])
def test_unlabelled_steps_must_be_selected_away(label):
    with pytest.raises(ValueError, match="between 0 and 1"):
        step_losses(f64([0.0]), f64([label]))


def test_a_head_of_two_logits_is_one_logit_of_their_difference():
    logits = f64([[0.1, 1.0], [0.7, -0.3]])
    expected = step_losses(logits[:, 1] - logits[:, 0], f64([1.0, 0.0]))
    assert expected.tolist() == pytest.approx(two_class_step_losses(logits, torch.tensor([1, 0])).tolist())


def test_steps_after_the_first_error_are_not_trained():
    labels = torch.tensor([1, 0, 1, 0, 1, 1, 0, 0])
    samples = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])
    expected = [True, True, False, False, True, True, True, False]
    assert expected == until_first_error(labels, samples, 3).tolist()


def test_rollout_labels_are_a_share_or_a_possibility():
    counts = torch.tensor([3, 2, 0])
    assert [0.75, 0.5, 0.0] == rollout_labels(counts, 4, soft=True).tolist()
    assert [1.0, 1.0, 0.0] == rollout_labels(counts, 4, soft=False).tolist()


def test_more_right_rollouts_than_rollouts_are_refused():
    with pytest.raises(ValueError, match="right counts"):
        rollout_labels(torch.tensor([5]), 4, soft=True)


def test_the_worst_case_is_at_most_every_member():
    assert bool((combine(MEMBERS, "worst") <= MEMBERS).all())


def test_uncertainty_costs_nothing_where_members_agree():
    agreed = f64([[1.0, 2.0]]).expand(3, 2)
    for how in ("mean", "worst", "uncertainty_weighted", "mean_minus_deviation"):
        assert [1.0, 2.0] == pytest.approx(combine(agreed, how).tolist())


def test_uncertainty_can_turn_the_order_of_answers_round():
    scores = f64([[3.0, 1.0], [-0.8, 1.0]])
    assert combine(scores, "mean")[0] > combine(scores, "mean")[1]
    assert combine(scores, "uncertainty_weighted")[0] < combine(scores, "uncertainty_weighted")[1]


def test_normalised_members_have_mean_0_and_spread_1_on_the_reference():
    scores = normalise_members(MEMBER_REFERENCE, MEMBER_REFERENCE)
    assert [0.0] * 3 == pytest.approx(scores.mean(1).tolist())
    assert [1.0] * 3 == pytest.approx(scores.std(1, correction=0).tolist())


def test_normalising_makes_a_members_scale_and_offset_meaningless():
    rescaled = MEMBER_REFERENCE * torch.tensor([[3.0], [0.1], [7.0]]) + 4
    expected = normalise_members(MEMBER_REFERENCE, MEMBER_REFERENCE)
    assert torch.allclose(expected, normalise_members(rescaled, rescaled))


def test_a_member_without_spread_is_refused():
    with pytest.raises(ValueError, match=r"members \[1\]"):
        normalise_members(MEMBERS, f64([[0.0, 1.0], [2.0, 2.0], [0.0, 3.0]]))


def test_one_member_has_no_sample_variance():
    with pytest.raises(ValueError, match="ddof 1"):
        combine(MEMBERS[:1], "uncertainty_weighted", ddof=1)


def test_an_unknown_combination_is_refused():
    with pytest.raises(ValueError, match="median"):
        combine(MEMBERS, "median")


def test_disagreement_is_the_spread_over_members():
    assert MEMBERS.std(0, correction=0).tolist() == disagreement(MEMBERS).tolist()


def test_a_tie_counts_half_and_is_reported():
    accuracy = pair_accuracy(f64([1.0, 2.0, 3.0, 0.0]), f64([0.0, 2.0, 1.0, 5.0]))
    assert (0.625, 4, 1) == (accuracy.value, accuracy.pairs, accuracy.ties)


def test_the_interval_holds_the_value_and_narrows_with_pairs():
    few = pair_accuracy(torch.ones(10), torch.zeros(10))
    many = pair_accuracy(torch.ones(1000), torch.zeros(1000))
    assert few.low < many.low < 1.0
    assert pytest.approx(few.low, abs=1e-4) == 0.7225
    assert many.high == pytest.approx(1.0)


def test_accuracy_of_nothing_or_nan_is_refused():
    with pytest.raises(ValueError, match="0 pairs"):
        pair_accuracy(f64([]), f64([]))
    with pytest.raises(ValueError, match="NaN"):
        pair_accuracy(f64([math.nan]), f64([0.0]))


def test_calibration_error_is_the_gap_weighted_by_bin():
    probabilities, outcomes = f64([0.9, 0.9, 0.2, 0.2]), f64([1.0, 0.0, 0.0, 0.0])
    assert pytest.approx(calibration_error(probabilities, outcomes)) == 0.5 * 0.4 + 0.5 * 0.2


def test_certainty_falls_into_the_last_bin():
    assert calibration_error(f64([1.0, 0.0]), f64([1.0, 0.0])) == 0.0


def test_a_gap_of_zero_is_calibrated_and_a_boast_is_not():
    assert pair_calibration_error(torch.zeros(4), torch.zeros(4)) == pytest.approx(0.0)
    boast = pair_calibration_error(f64([9.0, -9.0]), f64([-9.0, 9.0]))
    assert pytest.approx(boast, abs=1e-6) == 0.5


def test_pair_calibration_matches_a_world_that_follows_the_model():
    gap = math.log(3)
    chosen, rejected = f64([gap, gap, gap, 0.0]), f64([0.0, 0.0, 0.0, gap])
    assert pair_calibration_error(chosen, rejected) == pytest.approx(0.0)


def test_calibration_refuses_what_is_no_probability():
    with pytest.raises(ValueError, match="between 0 and 1"):
        calibration_error(f64([1.2]), f64([1.0]))
