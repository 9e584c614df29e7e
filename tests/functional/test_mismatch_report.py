"""The mismatch report: zero for equal policies, and each number where it is defined."""

import math
from dataclasses import asdict

import pytest
import torch

from posttrain.functional.mismatch_report import effective_share, report
from tests.golden.fixtures import COUNT, SAMPLES, f64, old, roll

REPORT = report(old, roll, SAMPLES, COUNT)


def test_equal_policies():
    expected = {
        "mean_absolute": 0.0,
        "k1": 0.0,
        "k3": 0.0,
        "chi_square": 0.0,
        "chi_square_sequence": 0.0,
        "effective_share": 1.0,
        "mean_weight": 1.0,
        "largest_weight": 1.0,
        "far_share": 0.0,
        "correlation": 1.0,
        "dropped_share": 0.0,
    }
    assert expected == pytest.approx(asdict(report(old, old, SAMPLES, COUNT)), abs=1e-12)


def test_mean_absolute_and_largest():
    assert float((old - roll).abs().mean()) == pytest.approx(REPORT.mean_absolute)
    assert float((old - roll).exp().max()) == pytest.approx(REPORT.largest_weight)


def test_far_share_counts_both_directions():
    assert 2 / 13 == pytest.approx(report(old, roll, SAMPLES, COUNT, far=0.85).far_share)


def test_dropped_share():
    keep = torch.arange(13) < 10
    assert 3 / 13 == pytest.approx(report(old, roll, SAMPLES, COUNT, keep=keep).dropped_share)


def test_correlation_is_pearsons_of_the_probabilities():
    expected = torch.corrcoef(torch.stack([old.exp(), roll.exp()]))[0, 1]
    assert float(expected) == pytest.approx(REPORT.correlation, abs=1e-12)


def test_correlation_is_undefined_where_nothing_varies():
    same = torch.full((13,), -1.0)
    assert math.isnan(report(same, roll, SAMPLES, COUNT).correlation)


def test_one_heavy_token_leaves_an_effective_share_of_one_over_n():
    assert 0.25 == pytest.approx(effective_share(f64([1e9, 1, 1, 1])), rel=1e-6)


def test_rows_without_tokens_are_not_counted():
    expected = REPORT.chi_square_sequence
    assert expected == pytest.approx(report(old, roll, SAMPLES, COUNT + 5).chi_square_sequence)


def test_a_huge_gap_stays_finite():
    actual = report(torch.zeros(13), torch.full((13,), -200.0), SAMPLES, COUNT)
    assert math.isfinite(actual.chi_square_sequence)
    assert math.isfinite(actual.chi_square)
