"""Numbers of a batch by hand: passes, groups, lengths, parts, staleness."""

import pytest

from posttrain.loops.numbers import group_numbers, passed, sample_numbers
from posttrain.types import Ending, Group, Outcome, Score
from tests.models.samples import sample
from tests.records.examples import TASK, build_group, build_rollout, build_segment


def scored(*values, names=("exact", "brief", "third")):
    scores = [Score(name=name, value=value, outcome=Outcome.SCORED) for name, value in zip(names, values, strict=False)]
    return build_rollout(scores=tuple(scores), reward=sum(v or 0.0 for v in values))


def group_of(*rollouts, position=0):
    return Group(position=position, task=TASK, rollouts=rollouts)


@pytest.mark.parametrize(
    ("values", "expected"),
    [((1.0,), True), ((0.99,), False), ((0.0, 1.0), False), ((None, 1.0), True), ((None, None), False), ((), False)],
)
def test_the_first_part_that_applies_decides(values, expected):
    assert expected == passed(scored(*values))


def test_an_unparsable_answer_has_not_passed():
    score = Score(name="exact", value=1.0, outcome=Outcome.UNPARSABLE)
    assert not passed(build_rollout(scores=(score,)))


NUMBERS = group_numbers([build_group(0), build_group(1, rewards=(1.0, 1.0)), build_group(2, rewards=(0.0, 0.0))], 5)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("reward/mean", 0.5),
        ("reward/std", 0.5),
        ("pass_rate", 0.5),
        ("groups/count", 3),
        ("groups/all_right", 1),
        ("groups/all_wrong", 1),
        ("groups/mixed", 1),
        ("groups/equal", 2),
        ("length/mean", 2),
        ("truncated_share", 0),
        ("tokens/sampled", 12),
        ("reward/exact/mean", 0.5),
        ("rollouts/unparsable", 0),
        ("staleness/mean", 2),
        ("staleness/max", 2),
    ],
)
def test_numbers_of_three_groups(name, expected):
    assert expected == NUMBERS[name]


def test_lengths_are_over_all_segments():
    long = build_rollout(segments=(build_segment(), build_segment((5, 6, 7, 8, 9))))
    found = group_numbers([group_of(build_rollout(), long)], 3)
    assert (3.5, 5.0, 2.0) == (found["length/mean"], found["length/max"], found["length/min"])


def test_truncation():
    found = group_numbers([group_of(build_rollout(), build_rollout(ending=Ending.LENGTH))], 3)
    assert 0.5 == found["truncated_share"]


def test_a_part_is_averaged_where_it_applies():
    assert 0.25 == group_numbers([group_of(scored(1.0, None), scored(1.0, 0.25))], 3)["reward/brief/mean"]


def test_unparsable_answers_are_counted():
    score = Score(name="exact", value=0.0, outcome=Outcome.UNPARSABLE)
    assert 1.0 == group_numbers([group_of(build_rollout(scores=(score,)))], 3)["rollouts/unparsable"]


def test_a_group_without_rollouts_counts_only_as_a_group():
    found = group_numbers([group_of(), build_group(1)], 3)
    assert (2.0, 0.5) == (found["groups/count"], found["pass_rate"])


def test_nothing_but_empty_groups():
    assert {"groups/count": 2.0} == group_numbers([group_of(), group_of()], 3)


def test_completions_without_tokens_have_no_staleness():
    empty = build_rollout(segments=(build_segment((5, 6), prompt_length=2),))
    found = group_numbers([group_of(empty)], 3)
    assert (0.0, False) == (found["length/mean"], "staleness/mean" in found)


def test_offline_lengths():
    found = sample_numbers([sample([5], [6, 7]), sample([5], [6, 7, 8, 9])])
    assert {"length/mean": 3.0, "length/max": 4.0, "length/min": 2.0} == found
