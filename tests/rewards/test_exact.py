"""Equal text, after the normalisation asked for, found where it was asked for."""

import time

import pytest

from posttrain.config import validate
from posttrain.errors import ConfigError
from posttrain.rewards.exact import Config, Exact
from posttrain.types import Outcome
from tests.rewards.rollouts import score_all, score_one


def read(text, answer="42", **options):
    score = score_one(Exact(Config(**options)), text, answer)
    return score.value if score.outcome is Outcome.SCORED else score.outcome


def test_equal_text_is_right():
    assert 1.0 == read("42")


def test_other_text_is_wrong():
    assert 0.0 == read("43")


def test_text_that_contains_the_answer_is_wrong():
    assert 0.0 == read("41 42 43")


def test_space_around_is_ignored_by_default():
    assert 1.0 == read(" 42\n")


def test_space_around_counts_without_strip():
    assert 0.0 == read(" 42", strip=False)


def test_case_counts_by_default():
    assert 0.0 == read("Paris", "paris")


def test_case_can_be_ignored():
    assert 1.0 == read("STRASSE", "straße", ignore_case=True)


def test_white_space_inside_counts_by_default():
    assert 0.0 == read("a  b", "a b")


def test_white_space_inside_can_be_collapsed():
    assert 1.0 == read("a \n\t b", "a b", collapse_whitespace=True)


def test_the_last_tag_counts():
    assert 1.0 == read("<answer>41</answer> no, <answer>42</answer>", place="tag")


def test_another_tag_can_be_named():
    assert 1.0 == read("<final>42</final>", place="tag", tag="final")


def test_a_missing_tag_is_unparsable():
    assert Outcome.UNPARSABLE == read("42", place="tag")


def test_an_open_tag_is_unparsable():
    assert Outcome.UNPARSABLE == read("<answer>42", place="tag")


def test_box_with_nested_braces():
    assert 1.0 == read(r"so \boxed{\frac{1}{2}}", r"\frac{1}{2}", place="boxed")


def test_unbalanced_box_is_unparsable():
    assert Outcome.UNPARSABLE == read(r"\boxed{42", place="boxed")


def test_hashes():
    assert 1.0 == read("work\n#### 42\n", place="hashes")


def test_last_match_of_a_pattern_counts():
    assert 1.0 == read("x=1, x=42.", pattern=r"x=(\d+)")


def test_pattern_without_group_gives_the_whole_match():
    assert 1.0 == read("the 42 things", pattern=r"\d+")


def test_pattern_without_match_is_unparsable():
    assert Outcome.UNPARSABLE == read("none", pattern=r"\d+")


def test_group_that_took_no_part_is_unparsable():
    assert Outcome.UNPARSABLE == read("b", pattern=r"(a)?b")


def test_exploding_pattern_times_out_and_spoils_only_its_own_completion():
    reward = Exact(Config(pattern=r"(?:a+)+$", timeout_seconds=0.3))
    scores = score_all(reward, ["a" * 40 + "b", "a"], "a")
    assert [Outcome.TIMEOUT, Outcome.SCORED] == [score.outcome for score in scores]


def test_task_without_answer_is_a_failure():
    assert Outcome.FAILED == read("42", None)


def test_empty_completion_is_wrong():
    assert 0.0 == read("")


@pytest.mark.parametrize("text", ["<answer>" * 130_000, "\\boxed{" * 150_000, "#" * 1_000_000, "{" * 1_000_000])
@pytest.mark.parametrize("place", ["tag", "boxed", "hashes"])
def test_a_megabyte_is_read_in_bounded_time(text, place):
    start = time.monotonic()
    read(text, place=place)
    assert time.monotonic() - start < 5


def test_control_characters_do_no_harm():
    assert 0.0 == read("\x00\x1b[2J\ud800")


def test_bad_pattern_is_refused_with_the_reason():
    with pytest.raises(ConfigError, match=r"pattern.*not a regular expression.*unterminated"):
        validate(Config, {"pattern": "(a"}, where="rewards 'exact'")


def test_score_carries_the_name_and_what_was_read():
    score = score_one(Exact(Config(), name="correct"), " 42 ")
    assert ("correct", "42") == (score.name, score.detail)
