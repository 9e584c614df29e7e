"""Rejection: the two denominators, row statistics and the off-policy sequence mask."""

import pytest
import torch

from posttrain.functional.reduce import token_weights
from posttrain.functional.rejection import below, divergence, keep_weights, opsm_keep, row_statistic
from tests.golden.fixtures import COUNT, COUNTS, SAMPLES, A, f64, new, old, roll

KEEP = torch.tensor([True, False, True, True, False, False, False, True, True, True, False, True, False])
LOG_W = old - roll


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
def test_original_denominator_is_that_of_the_whole_batch(mode):
    expected = torch.where(KEEP, token_weights(mode, COUNTS)[SAMPLES], 0.0)
    assert expected.tolist() == keep_weights(mode, SAMPLES, COUNT, KEEP).tolist()


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_kept_denominator_sums_to_one_again(mode):
    actual = keep_weights(mode, SAMPLES, COUNT, KEEP, denominator="kept")
    assert 1.0 == pytest.approx(float(actual.sum()), abs=1e-12)


def test_kept_denominator_does_not_count_a_row_that_was_dropped_whole():
    actual = keep_weights("seq-mean-token-mean", SAMPLES, COUNT, KEEP, denominator="kept")
    assert 1 / (3 * 3) == pytest.approx(float(actual[0]))


def test_a_batch_of_which_little_is_kept_takes_a_small_step_by_default():
    keep = torch.zeros(13, dtype=torch.bool)
    keep[0] = True
    assert 1 / 13 == pytest.approx(float(keep_weights("token-mean", SAMPLES, COUNT, keep).sum()))


@pytest.mark.parametrize("denominator", ["original", "kept"])
def test_everything_dropped_weighs_nothing(denominator):
    none = torch.zeros(13, dtype=torch.bool)
    assert [0.0] * 13 == keep_weights("token-mean", SAMPLES, COUNT, none, denominator=denominator).tolist()


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_equal_policies_do_not_diverge(estimator):
    assert 0.0 == float(divergence(old - old, estimator).abs().max())


def test_k1_and_k3_are_unbiased_over_behaviour_samples():
    p, behaviour = f64([0.3, -0.2, 0.9]).log_softmax(0), f64([1.0, 0.0, -0.5]).log_softmax(0)
    exact = float((behaviour.exp() * (behaviour - p)).sum())
    for estimator in ("k1", "k3"):
        assert exact == pytest.approx(float((behaviour.exp() * divergence(p - behaviour, estimator)).sum()), abs=1e-12)


@pytest.mark.parametrize(("statistic", "expected"), [("mean", 2.0), ("sum", 4.0), ("max", 3.0)])
def test_row_statistics(statistic, expected):
    actual = row_statistic(f64([1, 3, -5]), torch.tensor([0, 0, 2]), 4, statistic)
    assert [expected, 0.0, -5.0, 0.0] == actual.tolist()


def test_bound_is_inclusive():
    assert [True, False] == below(f64([1, 2]), torch.tensor([0, 1]), 2, statistic="max", bound=1.0).tolist()


def test_opsm_keeps_every_row_that_is_not_bad():
    assert [True] * COUNT == opsm_keep(A.abs(), roll, new, SAMPLES, COUNT, bound=-9.0).tolist()


def test_opsm_drops_a_bad_row_the_policy_has_left():
    keep = opsm_keep(f64([-1, -1]), f64([0, 0]), f64([-0.3, -0.1]), torch.tensor([0, 1]), 2, bound=0.2)
    assert [False, True] == keep.tolist()


def test_opsm_keeps_a_row_without_tokens():
    assert bool(opsm_keep(A, roll, new, SAMPLES, COUNT + 1, bound=0.1)[COUNT])


def test_a_huge_gap_stays_finite():
    assert bool(divergence(f64([500.0, -500.0]), "k3").isfinite().all())
