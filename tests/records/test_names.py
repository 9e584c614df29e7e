"""Every metric name has one meaning, and unknown ones are refused."""

import pytest

from posttrain.errors import RecordError
from posttrain.records.names import NAMES, check_names, describe

ISSUE = [
    "reward/mean",
    "reward/std",
    "reward/exact/mean",
    "pass_rate",
    "groups/count",
    "groups/all_right",
    "groups/all_wrong",
    "groups/mixed",
    "groups/dropped",
    "length/mean",
    "length/max",
    "length/min",
    "truncated_share",
    "entropy",
    "kl_ref/k1",
    "kl_ref/k3",
    "ratio/mean",
    "ratio/max",
    "clip_share/low",
    "clip_share/high",
    "grad_norm",
    "learning_rate",
    "logprob_gap/mean",
    "logprob_gap/max",
    "staleness/mean",
    "staleness/max",
    "tokens_per_second/generate",
    "tokens_per_second/train",
    "seconds/generate",
    "memory/peak_mb",
    "loss",
    "loss/policy",
    "rollouts/failed",
    "rollouts/timeout",
    "rollouts/unparsable",
    "tokens/sampled",
    "tokens/trained",
    "tokens/computed",
    "steps/nonfinite",
]


@pytest.mark.parametrize("name", ISSUE)
def test_the_watched_names_are_known(name):
    assert describe(name) is not None


def test_names_are_unique():
    assert len(NAMES) == len({row.name for row in NAMES})


@pytest.mark.parametrize("row", NAMES, ids=lambda row: row.name)
def test_each_line_has_unit_and_sentence(row):
    assert row.unit
    assert row.meaning.endswith(".")


def test_an_exact_name_comes_before_a_pattern():
    assert "reward/mean" == describe("reward/mean").name


def test_a_part_of_a_reward_is_a_pattern():
    assert "reward/<part>/mean" == describe("reward/format/mean").name


def test_a_part_has_no_slash():
    assert describe("reward/a/b/mean") is None


def test_a_pattern_needs_its_part():
    assert describe("seconds/") is None


def test_own_numbers_may_have_slashes():
    assert "custom/<name>" == describe("custom/mine/deep").name


def test_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(RecordError, match=r"'grad_nrom' is not in the table.*Did you mean 'grad_norm'\?.*custom/"):
        check_names(["entropy", "grad_nrom"])


def test_known_names_pass():
    assert check_names(ISSUE) is None
