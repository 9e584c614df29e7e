"""What a verdict says."""

import math

import pytest

from posttrain.checks.report import bounded, stated


@pytest.mark.parametrize(
    ("value", "status"), [(0.0, "pass"), (1e-4, "pass"), (1.1e-4, "fail"), (math.inf, "fail"), (math.nan, "fail")]
)
def test_a_bound(value, status):
    assert status == bounded("x", value, 1e-4).status


def test_a_bound_says_both_numbers():
    found = bounded("x", 0.00123456, 1e-4)
    assert ("0.00123", "at most 1e-04") == (found.measured, found.expected)


def test_a_bound_of_zero_takes_only_zero():
    assert ["pass", "fail"] == [bounded("x", value, 0.0).status for value in (0.0, 1e-300)]


@pytest.mark.parametrize(
    ("holds", "otherwise", "status"), [(True, "warn", "pass"), (False, "warn", "warn"), (False, "fail", "fail")]
)
def test_a_statement(holds, otherwise, status):
    assert status == stated("x", holds, "a", "b", otherwise=otherwise).status
