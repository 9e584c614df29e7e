"""Whitening: moments, weights, degenerate batches, and why it must not be done per micro-batch."""

import pytest
import torch

from posttrain.functional.whiten import rows_whitened, whiten
from tests.golden.fixtures import ADVANTAGE, COUNT, SAMPLES, A, f64, new


@pytest.mark.parametrize("ddof", [0, 1])
def test_token_whitening_has_mean_zero_and_variance_one(ddof):
    actual = whiten(new, SAMPLES, COUNT, ddof=ddof, epsilon=0)
    assert (0.0, 1.0) == pytest.approx((float(actual.mean()), float(actual.var(correction=ddof))), abs=1e-12)


def test_sequence_whitening_centres_the_mean_of_row_means():
    actual = whiten(new, SAMPLES, COUNT, by="sequence")
    means = torch.stack([actual[SAMPLES == row].mean() for row in range(COUNT)])
    assert 0.0 == pytest.approx(float(means.mean()), abs=1e-12)


def test_rows_whitened_by_sequence_is_the_plain_standardisation():
    expected = (ADVANTAGE - ADVANTAGE.mean()) / (ADVANTAGE.var() + 1e-8).sqrt()
    actual = rows_whitened(ADVANTAGE, SAMPLES, COUNT, by="sequence")
    assert expected.tolist() == pytest.approx(actual.tolist(), abs=1e-12)


def test_rows_whitened_gives_an_empty_row_nothing():
    assert 0.0 == float(rows_whitened(f64([1, 0, 1, 0.5, 9]), SAMPLES, COUNT + 1)[COUNT])


def test_an_empty_row_does_not_count_as_a_sequence():
    actual = whiten(A, SAMPLES, COUNT + 3, by="sequence")
    assert whiten(A, SAMPLES, COUNT, by="sequence").tolist() == actual.tolist()


@pytest.mark.parametrize("by", ["token", "sequence"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_values_become_exactly_zero(by, dtype):
    assert [0.0] * 13 == whiten(torch.full((13,), 0.7, dtype=dtype), SAMPLES, COUNT, by=by).tolist()


def test_one_token_becomes_zero():
    assert [0.0] == whiten(f64([3.0]), torch.tensor([0]), 1).tolist()


def test_no_tokens_give_nothing():
    assert [] == whiten(torch.zeros(0), torch.zeros(0, dtype=torch.int64), 0).tolist()


def test_scaling_alone_keeps_the_sign():
    actual = whiten(new, SAMPLES, COUNT, centre=False)
    assert (new / (new.var() + 1e-8).sqrt()).tolist() == pytest.approx(actual.tolist(), abs=1e-12)


def test_a_microbatch_would_be_whitened_differently():
    half = SAMPLES < 2
    assert whiten(new, SAMPLES, COUNT)[half].tolist() != pytest.approx(whiten(new[half], SAMPLES[half], 2).tolist())


def test_row_order_does_not_matter():
    order = torch.cat([torch.nonzero(SAMPLES == row)[:, 0] for row in (2, 0, 3, 1)])
    numbers = torch.tensor([1, 3, 0, 2])[SAMPLES[order]]
    expected = whiten(new, SAMPLES, COUNT, by="sequence")[order]
    assert expected.tolist() == pytest.approx(whiten(new[order], numbers, COUNT, by="sequence").tolist(), abs=1e-12)
