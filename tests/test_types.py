"""Properties of the nouns: counts, rewards, merged stats."""

import math

import pytest

from posttrain.types import Ending, Stat, merge_stats
from tests.records.examples import build_group, build_rollout, build_segment


def test_sampled_count_adds_up_segments():
    rollout = build_rollout(segments=(build_segment((5, 6, 7, 8)), build_segment((5, 6, 7))))
    assert 3 == rollout.sampled_count


@pytest.mark.parametrize("ending", list(Ending))
def test_only_the_length_truncates(ending):
    assert (ending is Ending.LENGTH) == build_rollout(ending=ending).truncated


def test_rewards_in_rollout_order():
    assert (1.0, 0.5) == build_group(rewards=(1.0, 0.5)).rewards


def test_a_missing_reward_is_named():
    with pytest.raises(ValueError, match=r"group 0: rollouts \[1\] have no reward"):
        _ = build_group(rewards=(1.0, None)).rewards


def test_means_merge_by_count():
    merged = Stat(kind="mean", value=3.0, count=3).merge(Stat(kind="mean", value=5.0, count=1))
    assert 2.0 == merged.result


def test_sums_add():
    assert 3.0 == Stat(kind="sum", value=1.0).merge(Stat(kind="sum", value=2.0)).result


@pytest.mark.parametrize(("kind", "expected"), [("max", 2.0), ("min", -1.0)])
def test_extremes(kind, expected):
    assert expected == Stat(kind=kind, value=2.0).merge(Stat(kind=kind, value=-1.0)).result


def test_a_mean_over_nothing_is_nan():
    assert math.isnan(Stat(kind="mean", value=0.0, count=0).result)


def test_stats_merge_by_name():
    one, two = {"a": Stat(kind="sum", value=1.0)}, {"a": Stat(kind="sum", value=2.0), "b": Stat(kind="max", value=7.0)}
    assert {"a": 3.0, "b": 7.0} == {name: stat.result for name, stat in merge_stats([one, two]).items()}


def test_no_stats_merge_to_none():
    assert {} == merge_stats([])


def test_nouns_are_frozen():
    with pytest.raises(AttributeError):
        build_group().position = 3
