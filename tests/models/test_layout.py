"""Samples are placed up to the token before their last trained one, and families share exactly their prompt."""

import pytest

from posttrain.models.layout import (
    computed_length,
    place_packed,
    place_padded,
    place_shared,
    same_prompt,
    shared_length,
)
from tests.models.samples import sample


def test_computed_length_stops_before_the_last_trained_token():
    assert 3 == computed_length(sample([5, 6], [7, 8]))
    assert 2 == computed_length(sample([5, 6], [7, 8, 9], mask=[True, False, False]))
    assert 0 == computed_length(sample([5, 6], [7], mask=[False]))


def test_a_trained_first_token_is_refused():
    with pytest.raises(ValueError, match="index 0"):
        computed_length(sample([], [5]))


def test_shared_length_is_no_longer_than_what_is_computed():
    assert 2 == shared_length(sample([5, 6], [7]))
    assert 0 == shared_length(sample([5, 6], [7], mask=[False]))


def test_same_prompt_needs_group_and_tokens():
    one = sample([5, 6], [7, 8])
    assert same_prompt(one) == same_prompt(sample([5, 6], [9, 9, 9], rollout=1))
    assert same_prompt(one) != same_prompt(sample([5, 6], [7, 8], group=1))
    assert same_prompt(one) != same_prompt(sample([5, 7], [7, 8]))


def test_a_family_of_one_has_no_prefix():
    assert [0] == [block.prefix_length for block in place_shared([[sample([5, 6], [7, 8])]]).blocks]


def test_trained_tokens_may_lie_in_the_prompt_too():
    whole = sample([5], [6, 7, 8])
    prompt_long = type(whole)(**{f: getattr(whole, f) for f in whole.__slots__} | {"prompt_length": 3})
    microbatch = place_shared([[prompt_long, prompt_long]])
    assert [[5, 6, 7]] == microbatch.ids.tolist()
    assert [0, 1, 2, 0, 1, 2] == microbatch.sources.tolist()


def test_rows_of_samples_that_train_nothing_are_left_out():
    microbatch = place_padded([sample([5], [6], mask=[False]), sample([5, 6], [7])])
    assert [[5, 6]] == microbatch.ids.tolist()
    assert 2 == len(microbatch.samples)


def test_nothing_at_all():
    for microbatch in (place_padded([]), place_packed([]), place_shared([])):
        assert 0 == microbatch.token_count == len(microbatch.targets)
