"""Lists of answers: what each loss learns about the order, lists of different length, ties, overflow."""

import itertools
import math

import pytest
import torch

from posttrain.functional.preference_lists import all_pairs, comparing, ordered_pairs, plackett_luce, softmax_negatives
from tests.golden.fixtures_preference import ONE_LIST, ORDER_RANKS, REWARDS, f64

WINNER = torch.tensor([True, False, False, False])
TWO_LISTS = torch.tensor([0, 0, 0, 1, 1])


def gradient(loss, *labels):
    scores = REWARDS.clone().requires_grad_()
    loss(scores, *labels, ONE_LIST, 1).sum().backward()
    return scores.grad.tolist()


def test_plackett_luce_is_a_distribution_over_orders():
    total = 0.0
    for order in itertools.permutations(range(4)):
        ranks = torch.empty(4, dtype=torch.long)
        ranks[list(order)] = torch.arange(4)
        total += math.exp(-float(plackett_luce(REWARDS, ranks, ONE_LIST, 1)))
    assert pytest.approx(total) == 1.0


def test_equal_scores_cost_the_log_of_all_orders():
    assert math.log(24) == pytest.approx(float(plackett_luce(torch.zeros(4), torch.arange(4), ONE_LIST, 1)))


def test_only_plackett_luce_orders_the_losers():
    lowered = REWARDS.clone()
    lowered[1], lowered[3] = REWARDS[3], REWARDS[1]
    assert float(softmax_negatives(REWARDS, WINNER, ONE_LIST, 1)) == pytest.approx(
        float(softmax_negatives(lowered, WINNER, ONE_LIST, 1))
    )
    assert float(plackett_luce(REWARDS, ORDER_RANKS, ONE_LIST, 1)) < float(
        plackett_luce(lowered, ORDER_RANKS, ONE_LIST, 1)
    )


def test_softmax_gradient_is_the_share_minus_the_label():
    expected = REWARDS.softmax(0) - WINNER.double()
    assert expected.tolist() == pytest.approx(gradient(softmax_negatives, WINNER))


def test_gradients_of_every_list_loss_sum_to_zero():
    for loss, labels in ((plackett_luce, ORDER_RANKS), (softmax_negatives, WINNER), (all_pairs, ORDER_RANKS)):
        assert abs(sum(gradient(loss, labels))) < 1e-12


def test_tied_losers_make_plackett_luce_the_softmax():
    ranks = torch.tensor([0, 1, 1, 1])
    expected = float(softmax_negatives(REWARDS, WINNER, ONE_LIST, 1))
    assert expected == pytest.approx(float(plackett_luce(REWARDS, ranks, ONE_LIST, 1)))


def test_tied_winners_do_not_push_each_other():
    scores = f64([3.0, -1.0, 0.5]).requires_grad_()
    plackett_luce(scores, torch.tensor([0, 0, 1]), torch.zeros(3, dtype=torch.long), 1).sum().backward()
    expected = [-float(torch.sigmoid(f64(0.5 - s))) for s in (3.0, -1.0)]
    assert expected == pytest.approx(scores.grad[:2].tolist())


def test_a_list_without_any_order_costs_nothing_and_moves_nothing():
    scores = f64([1.0, 2.0]).requires_grad_()
    loss = plackett_luce(scores, torch.tensor([0, 0]), torch.tensor([0, 0]), 1)
    loss.sum().backward()
    assert [0.0] == loss.tolist()
    assert [0.0, 0.0] == scores.grad.tolist()


def test_lists_of_different_length_do_not_touch_each_other():
    scores = f64([0.8, 0.2, -0.5, 4.0, -3.0])
    ranks = torch.tensor([0, 1, 2, 1, 0])
    both = plackett_luce(scores, ranks, TWO_LISTS, 2)
    first = plackett_luce(scores[:3], ranks[:3], TWO_LISTS[:3], 1)
    second = plackett_luce(scores[3:], ranks[3:], torch.tensor([0, 0]), 1)
    assert [float(first), float(second)] == pytest.approx(both.tolist())


def test_the_order_of_rows_does_not_matter():
    order = torch.tensor([2, 0, 3, 1])
    assert float(plackett_luce(REWARDS, ORDER_RANKS, ONE_LIST, 1)) == pytest.approx(
        float(plackett_luce(REWARDS[order], ORDER_RANKS[order], ONE_LIST, 1))
    )


def test_large_scores_do_not_overflow():
    scores = torch.tensor([-800.0, 900.0, 700.0], requires_grad=True)
    loss = softmax_negatives(scores, torch.tensor([True, False, False]), torch.zeros(3, dtype=torch.long), 1)
    loss.sum().backward()
    assert [1700.0] == loss.tolist()
    assert torch.isfinite(scores.grad).all()


def test_all_pairs_counts_a_list_once_whatever_its_length():
    ranks = torch.tensor([0, 1, 2, 0, 1])
    losses = all_pairs(torch.zeros(5, dtype=torch.float64), ranks, TWO_LISTS, 2)
    assert [math.log(2), math.log(2)] == pytest.approx(losses.tolist())


def test_all_pairs_without_an_order_is_zero():
    assert [0.0] == all_pairs(REWARDS, torch.zeros(4, dtype=torch.long), ONE_LIST, 1).tolist()


def test_ordered_pairs_stay_inside_a_list_and_leave_out_ties():
    better, worse = ordered_pairs(torch.tensor([0, 1, 1, 0, 1]), TWO_LISTS)
    assert [(0, 1), (0, 2), (3, 4)] == list(zip(better.tolist(), worse.tolist(), strict=True))


def test_only_lists_with_an_order_count_in_a_mean():
    assert [True, False] == comparing(torch.tensor([0, 1, 1, 2, 2]), TWO_LISTS, 2).tolist()


def test_finite_differences_agree():
    scores = REWARDS.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda s: plackett_luce(s, ORDER_RANKS, ONE_LIST, 1), scores)
    assert torch.autograd.gradcheck(lambda s: all_pairs(s, ORDER_RANKS, ONE_LIST, 1), scores)
