"""Masked places are never read: flatten selects, row sums count what is there."""

import torch

from posttrain.functional.masked import flatten, row_count, row_mean, row_sum

MASK = torch.tensor([[True, False, True], [False, False, False], [False, True, False]])
VALUES = torch.tensor([[1.0, float("nan"), 2.0], [float("nan")] * 3, [float("inf"), 5.0, float("nan")]])


def test_flatten_keeps_rows_in_order():
    rows, values = flatten(MASK, VALUES)
    assert [0, 0, 2] == rows.tolist()
    assert [1.0, 2.0, 5.0] == values.tolist()


def test_flatten_takes_several_arrays():
    _, values, doubled = flatten(MASK, VALUES, 2 * VALUES)
    assert (2 * values).tolist() == doubled.tolist()


def test_flatten_of_nothing_is_empty():
    rows, values = flatten(torch.zeros(2, 3, dtype=torch.bool), VALUES[:2])
    assert (0, 0) == (len(rows), len(values))


def test_gradient_of_masked_nan_places_is_zero():
    values = VALUES.clone().requires_grad_()
    flatten(MASK, values)[1].exp().sum().backward()
    assert values.grad is not None
    assert [0.0] * 6 == values.grad[~MASK].tolist()
    assert bool(values.grad[MASK].isfinite().all())


def test_padding_side_does_not_matter():
    right = flatten(torch.tensor([[True, True, False]]), torch.tensor([[1.0, 2.0, 9.0]]))[1]
    left = flatten(torch.tensor([[False, True, True]]), torch.tensor([[9.0, 1.0, 2.0]]))[1]
    assert right.tolist() == left.tolist()


def test_row_sum_of_an_empty_row_is_zero():
    assert [3.0, 0.0, 5.0] == row_sum(torch.tensor([1.0, 2.0, 5.0]), torch.tensor([0, 0, 2]), 3).tolist()


def test_row_count_counts_trailing_empty_rows():
    assert [2, 0, 1, 0] == row_count(torch.tensor([0, 0, 2]), 4).tolist()


def test_row_mean_of_an_empty_row_is_zero():
    assert [1.5, 0.0, 5.0] == row_mean(torch.tensor([1.0, 2.0, 5.0]), torch.tensor([0, 0, 2]), 3).tolist()


def test_row_mean_spreads_its_gradient_evenly():
    values = torch.tensor([1.0, 2.0, 5.0], requires_grad=True)
    row_mean(values, torch.tensor([0, 0, 1]), 2).sum().backward()
    assert values.grad is not None
    assert [0.5, 0.5, 1.0] == values.grad.tolist()
