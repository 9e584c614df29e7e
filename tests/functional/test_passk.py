"""pass@k, pass^k, votes and best-of-n: golden values, brute force over all draws, and refusals."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.functional.passk import best_of_n, majority_vote, pass_at_k, pass_hat_k, weighted_vote

COUNTS = st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n)))
ANSWERS = ["7", "8", "7", "9", "8", "8"]
SCORES = [0.9, 0.3, 0.4, 0.95, 0.35, 0.2]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [((10, 3, 1), 0.3), ((10, 3, 5), 0.9166666666666667), ((4, 2, 3), 1.0), ((200, 7, 100), 0.9929911172418123)],
)
def test_pass_at_k_gives_the_golden_values(counts, expected):
    assert expected == pytest.approx(pass_at_k(*counts), abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(COUNTS)
def test_pass_at_k_is_the_share_of_draws_that_hold_a_right_one(counts):
    n, c, k = counts
    draws = list(itertools.combinations([True] * c + [False] * (n - c), k))
    assert np.mean([any(draw) for draw in draws]) == pytest.approx(pass_at_k(n, c, k), abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(COUNTS)
def test_pass_hat_k_is_the_share_of_draws_that_are_all_right(counts):
    n, c, k = counts
    draws = list(itertools.combinations([True] * c + [False] * (n - c), k))
    assert np.mean([all(draw) for draw in draws]) == pytest.approx(pass_hat_k(n, c, k), abs=1e-12)


def test_pass_at_k_keeps_its_digits_with_ten_thousand_samples():
    exact = 1 - math.comb(10_000 - 3, 5_000) / math.comb(10_000, 5_000)
    assert exact == pytest.approx(pass_at_k(10_000, 3, 5_000), rel=1e-11)


def test_pass_at_one_is_the_share_of_right_samples():
    assert 0.7 == pytest.approx(pass_at_k(10, 7, 1), abs=1e-15)


def test_pass_at_k_of_nothing_right_is_zero():
    assert pass_at_k(8, 0, 8) == 0.0


def test_pass_hat_k_golden_value():
    assert 0.0666666666667 == pytest.approx(pass_hat_k(10, 3, 2), abs=1e-12)


@pytest.mark.parametrize("estimate", [pass_at_k, pass_hat_k])
def test_k_above_the_sample_count_is_refused(estimate):
    with pytest.raises(ValueError, match="pass@5 needs at least 5 samples per prompt; got 4"):
        estimate(4, 2, 5)


@pytest.mark.parametrize("counts", [(4, 5, 1), (4, -1, 1), (4, 2, 0)])
def test_impossible_counts_are_refused(counts):
    with pytest.raises(ValueError, match="must be"):
        pass_at_k(*counts)


def test_the_majority_answer_counts():
    assert majority_vote(ANSWERS, [a == "8" for a in ANSWERS]) == 1.0


def test_a_right_minority_does_not_count():
    assert majority_vote(ANSWERS, [a == "7" for a in ANSWERS]) == 0.0


def test_a_tie_counts_with_the_chance_of_drawing_the_right_answer():
    assert 1 / 3 == pytest.approx(majority_vote(["1", "2", "3"], [False, True, False]))


def test_a_tie_does_not_depend_on_the_order():
    answers, right = ["1", "2", "2", "1", "3"], [True, False, False, True, False]
    results = {
        majority_vote([answers[i] for i in order], [right[i] for i in order])
        for order in itertools.permutations(range(5))
    }
    assert results == {0.5}


def test_an_unreadable_answer_has_no_vote():
    assert majority_vote([None, None, "4"], [False, False, True]) == 1.0


def test_a_vote_without_a_readable_answer_is_wrong():
    assert majority_vote([None, None], [False, False]) == 0.0


def test_an_answer_judged_differently_counts_with_its_share():
    assert majority_vote(["4", "4"], [True, False]) == 0.5


def test_the_weighted_vote_sums_scores_per_answer():
    assert weighted_vote(ANSWERS, SCORES) == "7"


def test_the_weighted_vote_without_an_answer_is_none():
    assert weighted_vote([None], [1.0]) is None


def test_the_weighted_vote_gives_a_tie_to_the_first_seen():
    assert weighted_vote(["b", "a"], [0.5, 0.5]) == "b"


def test_best_of_n_gives_the_golden_curve():
    right = [float(a == "7") for a in ANSWERS]
    curve = [best_of_n(SCORES, right, n) for n in range(1, 7)]
    assert [1 / 3, 7 / 15, 0.45, 1 / 3, 1 / 6, 0.0] == pytest.approx(curve, abs=1e-12)


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_best_of_n_is_the_mean_over_all_draws(n):
    values = [0.1, 0.7, 0.3, 0.9, 0.2]
    scores = [3.0, 1.0, 2.0, 0.5, 4.0]
    draws = itertools.combinations(range(5), n)
    expected = np.mean([values[max(draw, key=scores.__getitem__)] for draw in draws])
    assert expected == pytest.approx(best_of_n(scores, values, n), abs=1e-12)


def test_best_of_n_shares_a_tie():
    assert best_of_n([1.0, 1.0, 0.0], [1.0, 0.0, 0.0], 3) == pytest.approx(0.5)


def test_best_of_n_of_equal_scores_is_the_mean():
    assert best_of_n([2.0] * 4, [1.0, 0.0, 0.0, 1.0], 2) == pytest.approx(0.5)


@pytest.mark.parametrize("n", [0, 4])
def test_best_of_n_refuses_an_n_outside_the_samples(n):
    with pytest.raises(ValueError, match="from 1 to the number of samples 3"):
        best_of_n([1.0, 2.0, 3.0], [0.0, 0.0, 1.0], n)


def test_best_of_n_refuses_a_score_that_is_not_a_number():
    with pytest.raises(ValueError, match="NaN"):
        best_of_n([1.0, float("nan")], [0.0, 1.0], 1)


@pytest.mark.parametrize("function", [majority_vote, weighted_vote])
def test_votes_refuse_different_lengths(function):
    with pytest.raises(ValueError, match="one entry per sample"):
        function(["1"], [1.0, 0.0])


def test_votes_refuse_no_sample():
    with pytest.raises(ValueError, match="no sample"):
        majority_vote([], [])
