"""Choosing among samples: ties, votes, aggregation of steps, beams, what fine-tuning keeps."""

import math
from itertools import permutations

import pytest
import torch

from posttrain.functional.search import (
    AGGREGATIONS,
    best_of_n_kl_bound,
    keep_beams,
    keep_right,
    pick_best,
    rank,
    vote_totals,
    vote_winner,
)

STEPS = [0.9, 0.3, 0.6]


def test_the_first_of_equal_scores_is_picked():
    assert pick_best([0.2, 0.9, 0.9]) == 1


def test_ranking_is_stable_and_descending():
    assert [2, 0, 3, 1] == rank([0.5, 0.1, 0.9, 0.5])


@pytest.mark.parametrize("scores", [[], [0.1, math.nan]])
def test_nothing_and_nan_have_no_rank(scores):
    with pytest.raises(ValueError, match="ranking"):
        pick_best(scores)


def test_votes_without_scores_count_heads():
    assert {"a": 2.0, "b": 1.0} == vote_totals(["a", "b", "a"])


def test_an_unreadable_answer_does_not_vote():
    assert {"a": 0.5} == vote_totals([None, "a"], [9.0, 0.5])


def test_the_first_seen_answer_wins_a_tie():
    assert vote_winner(vote_totals(["b", "a"])) == "b"


def test_nobody_wins_without_votes():
    assert vote_winner(vote_totals([None, None])) is None


def test_votes_need_one_score_per_answer():
    with pytest.raises(ValueError):
        vote_totals(["a", "b"], [1.0])


def test_equal_scores_make_the_weighted_vote_a_majority():
    answers = ["a", "b", "a", "c"]
    assert vote_winner(vote_totals(answers)) == vote_winner(vote_totals(answers, [0.3] * 4))


@pytest.mark.parametrize("name", ["min", "product", "mean", "log_odds"])
def test_only_the_last_step_depends_on_order(name):
    values = {round(AGGREGATIONS[name](order), 12) for order in permutations(STEPS)}
    assert len(values) == 1
    assert len({AGGREGATIONS["last"](order) for order in permutations(STEPS)}) == 3


@pytest.mark.parametrize("name", ["min", "product", "last", "mean"])
def test_one_step_is_its_own_aggregate(name):
    assert AGGREGATIONS[name]([0.4]) == pytest.approx(0.4)


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_a_better_step_never_lowers_an_aggregate(name):
    assert AGGREGATIONS[name]([0.9, 0.35, 0.6]) >= AGGREGATIONS[name](STEPS)


def test_the_product_falls_with_length_where_minimum_and_mean_do_not():
    assert AGGREGATIONS["product"]([0.95] * 10) < AGGREGATIONS["product"]([0.9] * 2)
    for name in ("min", "mean", "last"):
        assert AGGREGATIONS[name]([0.95] * 10) > AGGREGATIONS[name]([0.9] * 2)


def test_certain_steps_have_finite_log_odds_that_cancel():
    assert AGGREGATIONS["log_odds"]([1.0, 0.0]) == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("name", AGGREGATIONS)
@pytest.mark.parametrize("steps", [[], [0.5, math.nan]])
def test_a_solution_without_steps_has_no_score(name, steps):
    with pytest.raises(ValueError, match="step score"):
        AGGREGATIONS[name](steps)


def test_identical_beams_are_kept_once_at_their_best_score():
    assert [2, 1] == keep_beams([0.5, 0.7, 0.9, 0.8], ["x", "y", "z", "z"], width=2)


def test_fewer_beams_than_the_width_are_all_kept():
    assert [0] == keep_beams([0.5], ["x"], width=4)


def test_beams_need_a_width_and_a_text_each():
    with pytest.raises(ValueError, match="width"):
        keep_beams([0.5], ["x"], width=0)
    with pytest.raises(ValueError, match="one text"):
        keep_beams([0.5], [], width=1)


def test_only_different_right_answers_up_to_the_cap_are_kept():
    texts = ["x=2", "x = 2", "x=3", "y", "x=4"]
    assert [0, 3] == keep_right(texts, [True, True, False, True, True], cap=2)


def test_what_counts_as_the_same_text_can_be_said():
    assert [0] == keep_right(["A", "a"], [True, True], cap=5, normalise=str.lower)
    assert [0, 1] == keep_right(["A", "a"], [True, True], cap=5)


def test_a_cap_below_one_is_refused():
    with pytest.raises(ValueError, match="cap"):
        keep_right(["a"], [True], cap=0)


def test_the_kl_bound_starts_at_zero_and_grows():
    bounds = [best_of_n_kl_bound(n) for n in (1, 2, 4, 64)]
    assert bounds[0] == 0.0
    assert bounds == sorted(bounds)


def test_the_kl_bound_holds_on_an_enumerated_policy_and_is_near_for_many_outcomes():
    outcomes, n = 400, 4
    upto = torch.arange(outcomes + 1, dtype=torch.float64) / outcomes
    best = upto[1:] ** n - upto[:-1] ** n
    kl = float((best * (best * outcomes).log()).sum())
    assert kl < best_of_n_kl_bound(n)
    assert kl == pytest.approx(best_of_n_kl_bound(n), abs=1e-2)


def test_best_of_none_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        best_of_n_kl_bound(0)
