"""beta-DPO: a debiased start, state that only training moves, a draw all ranks share."""

import math
from dataclasses import asdict

import pytest
import torch

from posttrain.functional.preference_beta import GapMoments, draw_kept, dynamic_beta, log_typicality
from tests.golden.fixtures_preference import GAPS, f64


def test_the_first_step_already_knows_its_own_mean_and_deviation():
    moments = GapMoments().observe(GAPS[0])
    assert float(GAPS[0].mean()) == pytest.approx(moments.mean)
    assert float(GAPS[0].std()) == pytest.approx(moments.deviation)


def test_moments_of_a_constant_stream_are_the_constant():
    moments = GapMoments()
    for _ in range(5):
        moments = moments.observe(f64([1.0, 3.0]))
    assert pytest.approx(moments.mean) == 2.0


def test_observing_returns_a_new_state_and_leaves_the_old():
    before = GapMoments()
    before.observe(GAPS[0])
    assert GapMoments() == before


def test_choosing_beta_and_weights_moves_no_state():
    moments = GapMoments().observe(GAPS[0])
    before = asdict(moments)
    log_typicality(GAPS[1], moments)
    dynamic_beta(3.0, moments)
    assert before == asdict(moments)


def test_state_survives_a_checkpoint():
    moments = GapMoments().observe(GAPS[0])
    assert GapMoments(**asdict(moments)).observe(GAPS[1]) == moments.observe(GAPS[1])


def test_observing_carries_no_graph():
    assert isinstance(GapMoments().observe(GAPS[0].clone().requires_grad_()).mean, float)


def test_before_training_evaluation_uses_the_plain_beta_and_equal_weights():
    assert dynamic_beta(7.0, GapMoments(), beta=0.1) == 0.1
    assert [0.0] * 4 == log_typicality(GAPS[0], GapMoments()).tolist()


def test_a_single_gap_has_deviation_zero_and_weight_one():
    moments = GapMoments().observe(f64([2.0]))
    assert moments.deviation == 0.0
    assert [0.0] == log_typicality(f64([2.0]), moments).tolist()


def test_a_step_without_pairs_is_refused():
    with pytest.raises(ValueError, match="without pairs"):
        GapMoments().observe(f64([]))


def test_smaller_gaps_than_usual_give_a_smaller_beta():
    moments = GapMoments().observe(GAPS[0])
    assert dynamic_beta(1.0, moments) < dynamic_beta(2.0, moments) < dynamic_beta(3.0, moments)


def test_beta_never_falls_below_its_floor():
    assert dynamic_beta(-50.0, GapMoments().observe(GAPS[0]), floor=0.01) == 0.01


def test_an_outlier_is_less_typical():
    moments = GapMoments().observe(f64([1.0, 1.2, 0.8, 9.0]))
    weights = log_typicality(f64([1.0, 1.2, 0.8, 9.0]), moments)
    assert int(weights.argmin()) == 3


def test_the_draw_keeps_the_floor_of_the_share():
    kept = [int(draw_kept(torch.zeros(n), drop_share=0.2, seed=0).sum()) for n in (1, 4, 5, 10)]
    assert [1, 3, 4, 8] == kept


def test_the_share_is_exact_where_floats_are_not():
    assert int(draw_kept(torch.zeros(10), drop_share=0.9, seed=0).sum()) == 1


def test_the_same_seed_draws_the_same_pairs_on_every_rank():
    weights = log_typicality(GAPS[0], GapMoments().observe(GAPS[0]))
    first = draw_kept(weights, drop_share=0.5, seed=11)
    torch.rand(3)
    assert first.tolist() == draw_kept(weights, drop_share=0.5, seed=11).tolist()


def test_weights_too_small_for_float64_can_still_be_drawn():
    kept = draw_kept(f64([-5000.0, -6000.0, -7000.0]), drop_share=0.0, seed=0)
    assert [True, True, True] == kept.tolist()


def test_pairs_are_drawn_in_proportion_to_their_weights():
    weights = f64([1.0, 2.0, 5.0])
    draws = torch.stack([draw_kept(weights.log(), drop_share=0.6, seed=seed) for seed in range(4000)])
    assert [1.0] * 4000 == draws.double().sum(1).tolist()
    assert [0.125, 0.25, 0.625] == pytest.approx(draws.double().mean(0).tolist(), abs=0.025)


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_an_impossible_share_is_refused(share):
    with pytest.raises(ValueError, match="drop_share"):
        draw_kept(torch.zeros(4), drop_share=share, seed=0)


def test_the_undebiased_start_would_have_left_nothing_to_draw():
    first = GapMoments().observe(GAPS[0])
    biased = [math.exp(-0.5 * ((gap - first.raw_mean) / first.raw_deviation) ** 2) for gap in GAPS[0].tolist()]
    assert min(biased) < 1e-90
    assert min(log_typicality(GAPS[0], first).exp().tolist()) > 0.5
