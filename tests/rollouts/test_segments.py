"""A row keeps what was sampled, where, by which version and in which turn."""

import math
from dataclasses import replace

import pytest

from posttrain.rollouts.segments import SegmentBuilder, check_completion
from tests.rollouts.fakes import complete, is_nan


def build():
    builder = SegmentBuilder((5, 6))
    builder.append_completion(complete("a", version=4), turn=0)
    builder.append_context((7,))
    builder.append_completion(complete("b", version=5), turn=1)
    return builder.build()


def test_ids():
    assert (5, 6, 97, 0, 7, 98, 0) == build().ids


def test_loss_mask_is_true_exactly_where_sampled():
    assert (False, False, True, True, False, True, True) == build().loss_mask


def test_versions():
    assert (-1, -1, 4, 4, -1, 5, 5) == build().versions


def test_turns():
    assert (-1, -1, 0, 0, -1, 1, 1) == build().turns


def test_prompt_length_is_that_of_the_first_context():
    assert 2 == build().prompt_length


def test_logprobs_are_nan_where_not_sampled():
    assert [not sampled for sampled in build().loss_mask] == is_nan(build().rollout_logprobs)


def test_logprobs_are_the_engines():
    assert [-0.5, -1.5, -0.5, -1.5] == [x for x in build().rollout_logprobs if not math.isnan(x)]


def test_extension_appends_context():
    builder = SegmentBuilder((5, 6))
    builder.extend_to((5, 6, 7))
    assert ((5, 6, 7), 2) == (builder.build().ids, builder.build().prompt_length)


@pytest.mark.parametrize("ids", [(5,), (5, 7, 8), ()])
def test_what_is_no_extension_is_refused(ids):
    with pytest.raises(ValueError, match="does not begin with the 2 ids of the row"):
        SegmentBuilder((5, 6)).extend_to(ids)


def test_empty_completion_adds_nothing():
    builder = SegmentBuilder((5,))
    builder.append_completion(replace(complete(""), ids=(), rollout_logprobs=(), versions=()), turn=0)
    assert (5,) == builder.build().ids


def test_completion_with_missing_numbers_is_refused():
    with pytest.raises(ValueError, match="2 ids, 1 rollout_logprobs and 2 versions"):
        check_completion(replace(complete("a"), rollout_logprobs=(-1.0,)))


def test_completion_with_nan_is_refused():
    with pytest.raises(ValueError, match="not finite"):
        check_completion(replace(complete("a"), rollout_logprobs=(-1.0, math.nan)))
