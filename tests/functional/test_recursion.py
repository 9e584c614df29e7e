"""The backward recursion against a plain loop, with empty rows, single tokens and given turns."""

import pytest
import torch

from posttrain.functional.recursion import backward_sum, first_of_row, following, last_of_row, turn_spans

SAMPLES = torch.tensor([0, 0, 0, 2, 3, 3])
COUNT = 5


def looped(terms, factors, samples) -> list[float]:
    result = [0.0] * len(terms)
    for t in reversed(range(len(terms))):
        inside = t + 1 < len(terms) and samples[t + 1] == samples[t]
        result[t] = float(terms[t]) + (float(factors[t]) * result[t + 1] if inside else 0.0)
    return result


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_plain_loop(seed):
    generator = torch.Generator().manual_seed(seed)
    samples = torch.randint(0, 7, (40,), generator=generator).sort().values
    terms, factors = torch.randn(2, 40, generator=generator, dtype=torch.float64)
    assert looped(terms, factors, samples) == pytest.approx(
        backward_sum(terms, factors, samples, 9).tolist(), abs=1e-12
    )


def test_factor_zero_gives_the_terms():
    terms = torch.arange(6.0)
    assert terms.tolist() == backward_sum(terms, 0.0, SAMPLES, COUNT).tolist()


def test_the_factor_after_a_row_is_never_read():
    factors = torch.ones(6).masked_fill(last_of_row(SAMPLES), float("nan"))
    assert [3.0, 2.0, 1.0, 1.0, 2.0, 1.0] == backward_sum(torch.ones(6), factors, SAMPLES, COUNT).tolist()


def test_the_terms_are_not_changed():
    terms = torch.ones(6)
    backward_sum(terms, 1.0, SAMPLES, COUNT)
    assert [1.0] * 6 == terms.tolist()


def test_no_tokens_give_nothing():
    none = torch.zeros(0)
    assert [] == backward_sum(none, 1.0, none.long(), 3).tolist()
    assert [] == following(none, none.long()).tolist()


def test_following_stays_inside_the_row():
    assert [1.0, 2.0, 0.0, 0.0, 5.0, 0.0] == following(torch.arange(6.0), SAMPLES).tolist()


def test_following_ends_with_the_rows_own_number():
    ends = torch.tensor([10.0, 11, 12, 13, 14])
    assert [1.0, 2.0, 10.0, 12.0, 5.0, 13.0] == following(torch.arange(6.0), SAMPLES, ends).tolist()


def test_first_and_last_of_each_row():
    assert [True, False, False, True, True, False] == first_of_row(SAMPLES).tolist()
    assert [False, False, True, True, False, True] == last_of_row(SAMPLES).tolist()


def test_turns_of_different_rows_are_different_spans():
    spans, rows = turn_spans(SAMPLES, torch.tensor([0, 1, 1, 1, 1, 2]))
    assert [0, 1, 1, 2, 3, 4] == spans.tolist()
    assert [0, 0, 2, 3, 3] == rows.tolist()
