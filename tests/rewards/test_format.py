"""The shape matches or not, in bounded time."""

import pytest

from posttrain.config import validate
from posttrain.errors import ConfigError
from posttrain.rewards.format import Config, Format
from posttrain.types import Outcome
from tests.rewards.rollouts import score_all, score_one

TAGS = r"<think>.*</think>\s*<answer>.*</answer>"


def test_full_match():
    assert 1.0 == score_one(Format(Config(pattern=TAGS)), "<think>a\nb</think>\n<answer>c</answer>\n").value


def test_more_than_the_shape_is_no_full_match():
    assert 0.0 == score_one(Format(Config(pattern=TAGS)), "<think></think><answer></answer> and more").value


def test_search_finds_a_part():
    assert 1.0 == score_one(Format(Config(pattern=r"\d", match="search")), "abc 1 def").value


def test_search_without_a_match():
    assert 0.0 == score_one(Format(Config(pattern=r"\d", match="search")), "abc").value


def test_scores_keep_the_order_of_the_rollouts():
    scores = score_all(Format(Config(pattern="a", max_characters=3)), ["a", "aaaa", "b", "a"])
    assert [1.0, 0.0, 0.0, 1.0] == [score.value for score in scores]


def test_exploding_pattern_times_out_and_spoils_only_its_own_completion():
    reward = Format(Config(pattern=r"(?:a+)+", timeout_seconds=0.3))
    scores = score_all(reward, ["a", "a" * 40 + "b", "aa"])
    assert [(Outcome.SCORED, 1.0), (Outcome.TIMEOUT, None), (Outcome.SCORED, 1.0)] == [
        (score.outcome, score.value) for score in scores
    ]


def test_too_long_a_completion_has_the_wrong_shape_without_a_search():
    score = score_one(Format(Config(pattern=r"(?:a+)+", timeout_seconds=0.3)), "a" * 1_000_000 + "b")
    assert (0.0, "1000001 characters, the limit is 100000") == (score.value, score.detail)


def test_control_characters_and_lone_surrogates_do_no_harm():
    assert 1.0 == score_one(Format(Config(pattern=".*")), "\x00\ud800\x1b").value


def test_bad_pattern_is_refused():
    with pytest.raises(ConfigError, match=r"pattern.*not a regular expression"):
        validate(Config, {"pattern": "*"}, where="rewards 'format'")
