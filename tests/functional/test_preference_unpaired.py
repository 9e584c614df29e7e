"""KTO and BCO: baselines, class weights, gradients; and mDPO's three terms."""

import math

import pytest
import torch

from posttrain.functional.preference_images import mdpo
from posttrain.functional.preference_pairs import bco_pair, dpo
from posttrain.functional.preference_unpaired import (
    RewardShift,
    bco,
    kto,
    kto_baseline,
    kto_weight_range,
    mismatched,
)
from tests.golden.fixtures_preference import KTO_DESIRABLE, KTO_LOG_RATIOS, f64, pairs


def test_each_row_is_shown_the_answer_of_the_row_before():
    assert [3, 0, 1, 2] == mismatched(4).tolist()


def test_one_row_cannot_be_mismatched():
    with pytest.raises(ValueError, match="at least 2"):
        mismatched(1)


def test_the_baseline_is_never_negative_and_carries_no_gradient():
    baseline = kto_baseline(f64([-1.0, -2.0]).requires_grad_())
    assert float(baseline) == 0.0
    assert not baseline.requires_grad


def test_the_baseline_of_nothing_is_refused():
    with pytest.raises(ValueError, match="mismatched"):
        kto_baseline(f64([]))


def test_kto_gradients_have_the_closed_form():
    log_ratios = KTO_LOG_RATIOS.clone().requires_grad_()
    kto(log_ratios, KTO_DESIRABLE, 0.475, desirable_weight=1.3).sum().backward()
    slope = torch.sigmoid(0.1 * (KTO_LOG_RATIOS - 0.475))
    steepness = 0.1 * slope * (1 - slope)
    expected = torch.where(KTO_DESIRABLE, -1.3 * steepness, steepness)
    assert expected.tolist() == pytest.approx(log_ratios.grad.tolist())


def test_kto_at_the_reference_is_one_half_for_both_classes():
    assert [0.5, 0.5] == kto(torch.zeros(2), torch.tensor([True, False]), 0.0).tolist()


def test_kto_pushes_an_extreme_answer_no_more():
    log_ratios = f64([4000.0, -4000.0]).requires_grad_()
    loss = kto(log_ratios, torch.tensor([False, True]), 0.0)
    loss.sum().backward()
    assert [1.0, 1.0] == loss.tolist()
    assert [0.0, 0.0] == log_ratios.grad.tolist()


def test_the_weight_range_balances_the_classes():
    low, high = kto_weight_range(10, 30)
    assert low * 10 == pytest.approx(30)
    assert high * 10 == pytest.approx(40)


def test_a_missing_class_has_no_balance():
    with pytest.raises(ValueError, match="both classes"):
        kto_weight_range(0, 3)


def test_bco_on_both_answers_is_bco_on_the_pair():
    log_ratios = torch.stack([pairs().chosen_log_ratio, pairs().rejected_log_ratio], dim=1)
    desirable = torch.tensor([True, False]).expand(4, 2)
    unpaired = bco(log_ratios, desirable, shift=0.1).sum(1)
    assert bco_pair(pairs(), shift=0.1).tolist() == pytest.approx(unpaired.tolist())


def test_the_shift_is_half_way_between_the_classes_over_all_steps():
    shift = RewardShift().observe(f64([1.0, 3.0, -1.0]), torch.tensor([True, True, False]))
    shift = shift.observe(f64([5.0]), torch.tensor([True]))
    assert (3.0 - 1.0) / 2 == pytest.approx(shift.value)


def test_the_shift_is_zero_until_both_classes_were_seen():
    assert RewardShift().observe(f64([4.0]), torch.tensor([True])).value == 0.0


def test_mdpo_adds_dpo_an_image_term_and_an_anchor():
    corrupted = f64([-15.0, -9.0, -19.0, -7.0])
    terms = mdpo(pairs(), corrupted, pairs().ref_chosen, anchor_margin=0.2)
    assert dpo(pairs()).tolist() == terms.response.tolist()
    assert (terms.response + terms.image + terms.anchor).tolist() == terms.total.tolist()
    expected = math.log1p(math.exp(-(0.1 * 0.5 - 0.2)))
    assert expected == pytest.approx(float(terms.anchor[0]))


def test_the_image_term_of_an_ignored_image_is_ln_2():
    terms = mdpo(pairs(), pairs().chosen, pairs().ref_chosen)
    assert [math.log(2)] * 4 == pytest.approx(terms.image.tolist())


def test_the_image_term_lowers_the_answer_under_the_wrong_image():
    corrupted = f64([-15.0, -9.0, -19.0, -7.0]).requires_grad_()
    mdpo(pairs(), corrupted, pairs().ref_chosen).total.sum().backward()
    assert (corrupted.grad > 0).all()
