"""Intervals over prompts: known quantiles, real coverage, degenerate cases, and refusals."""

import math

import numpy as np
import pytest

from posttrain.functional.intervals import paired_difference, prompt_interval, student_quantile, wilson

KNOWN_QUANTILES = {1: 12.706204736, 2: 4.302652730, 3: 3.182446305, 5: 2.570581836, 10: 2.228138852, 29: 2.045229642}


@pytest.mark.parametrize(("degrees", "expected"), KNOWN_QUANTILES.items())
def test_student_quantiles_are_the_tabled_ones(degrees, expected):
    assert expected == pytest.approx(student_quantile(0.975, degrees), abs=1e-8)


def test_the_expansion_continues_the_exact_quantile():
    assert student_quantile(0.975, 1999) > student_quantile(0.975, 2000) > student_quantile(0.975, 2001)


def test_the_quantile_of_many_degrees_is_the_normal_one():
    assert 1.959963985 == pytest.approx(student_quantile(0.975, 10**9), abs=1e-8)


@pytest.mark.parametrize(("probability", "degrees"), [(0.5, 3), (1.0, 3), (0.9, 0)])
def test_an_impossible_quantile_is_refused(probability, degrees):
    with pytest.raises(ValueError, match="need 0"):
        student_quantile(probability, degrees)


def test_wilson_gives_the_published_example():
    assert (0.2365930905, 0.7634069094) == pytest.approx(wilson(0.5, 10), abs=1e-9)


def test_wilson_starts_exactly_at_zero_when_nothing_was_right():
    assert wilson(0.0, 10) == (0.0, pytest.approx(0.2775327999))


def test_one_sample_per_prompt_gets_wilsons_interval():
    interval = prompt_interval([1, 0, 1, 0, 1, 0, 1, 0, 1, 0])
    assert (interval.low, interval.high, interval.method) == (*wilson(0.5, 10), "wilson")


def test_many_samples_per_prompt_get_students_interval():
    means = [0.25, 0.5, 0.75, 1.0]
    half = 3.182446305 * np.std(means, ddof=1) / 2
    interval = prompt_interval(means)
    assert (0.625 - half, 1.0, "student") == (pytest.approx(interval.low), interval.high, interval.method)


def test_the_standard_error_is_over_prompts():
    means = [0.2, 0.4, 0.9]
    assert np.std(means, ddof=1) / math.sqrt(3) == pytest.approx(prompt_interval(means).standard_error)


def test_equal_prompts_do_not_get_an_interval_of_no_width():
    interval = prompt_interval([0.5] * 10)
    assert (interval.low, interval.high, interval.method) == (*wilson(0.5, 10), "wilson-degenerate")


def test_all_right_leaves_room_below():
    assert prompt_interval([1.0] * 20).low == pytest.approx(1 - 1.959964**2 / (20 + 1.959964**2))


def test_a_single_prompt_says_almost_nothing():
    interval = prompt_interval([0.5])
    assert interval.high - interval.low > 0.8


def test_a_single_prompt_has_no_standard_error():
    assert prompt_interval([0.5]).standard_error is None


def test_higher_confidence_is_wider():
    values = [0.1, 0.5, 0.4, 0.8]
    assert prompt_interval(values, confidence=0.99).high > prompt_interval(values).high


@pytest.mark.parametrize("samples", [1, 4])
def test_the_interval_holds_the_truth_about_as_often_as_it_says(samples):
    draw = np.random.default_rng(7)
    hits = []
    for _ in range(600):
        skill = draw.beta(0.5, 0.7, size=60)
        interval = prompt_interval(draw.binomial(samples, skill) / samples)
        hits.append(interval.low <= 0.5 / 1.2 <= interval.high)
    assert 0.93 < np.mean(hits) < 0.97


def test_pooling_the_samples_would_have_been_too_narrow():
    draw = np.random.default_rng(7)
    rates = draw.binomial(16, draw.beta(0.3, 0.3, size=50)) / 16
    pooled = wilson(float(rates.mean()), 50 * 16)
    interval = prompt_interval(rates)
    assert interval.high - interval.low > 2 * (pooled[1] - pooled[0])


def test_the_paired_difference_has_the_sign_of_the_improvement():
    assert 0.25 == pytest.approx(paired_difference([0.0, 0.5], [0.5, 0.5]).mean)


def test_pairing_removes_how_hard_the_prompts_are():
    hard = np.linspace(0, 0.9, 40)
    difference = paired_difference(hard, hard + 0.1 * (np.arange(40) % 2))
    assert difference.low > 0


def test_a_change_that_is_noise_has_zero_inside():
    draw = np.random.default_rng(0)
    difference = paired_difference(draw.random(30), draw.random(30))
    assert difference.low < 0 < difference.high


def test_no_difference_on_any_prompt_still_has_width():
    difference = paired_difference([1.0] * 20, [1.0] * 20)
    assert (-wilson(0.0, 20)[1], wilson(0.0, 20)[1]) == (difference.low, difference.high)


def test_a_difference_never_leaves_its_range():
    difference = paired_difference([0.0, 0.0], [1.0, 1.0])
    assert difference.high == 1.0


def test_different_prompt_counts_cannot_be_paired():
    with pytest.raises(ValueError, match="the same prompts on both sides; got 2 and 1"):
        paired_difference([0.0, 1.0], [1.0])


@pytest.mark.parametrize("values", [[], [1.1], [-0.1], [float("nan")]])
def test_values_that_are_no_shares_are_refused(values):
    with pytest.raises(ValueError, match="prompt"):
        prompt_interval(values)


@pytest.mark.parametrize("confidence", [0.0, 1.0])
def test_an_impossible_confidence_is_refused(confidence):
    with pytest.raises(ValueError, match="confidence must be between"):
        prompt_interval([0.5, 0.6], confidence=confidence)
