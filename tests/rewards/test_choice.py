"""Letters chosen, letters listed, and a megabyte of either."""

import time

import pytest

from posttrain.config import validate
from posttrain.errors import ConfigError
from posttrain.rewards.choice import Choice, Config
from posttrain.types import Outcome
from tests.rewards.rollouts import score_one


def read(text, answer="B", **options):
    score = score_one(Choice(Config(**options)), text, answer)
    return score.value if score.outcome is Outcome.SCORED else score.outcome


@pytest.mark.parametrize(
    "text",
    [
        "B",
        "(B)",
        "B.",
        "B) a whale",
        "**B**",
        "The answer is B",
        "the answer is (B).",
        "Answer: B",
        "The answer is: **B**",
        "Answer: A. No. The answer is B because A is a fish.",
        "A whale is a mammal.\nB",
        "Some thought about A and C.\n(B) a whale",
    ],
)
def test_ways_to_choose(text):
    assert 1.0 == read(text)


def test_another_letter_is_wrong():
    assert 0.0 == read("The answer is C.")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A whale is a mammal.",
        "Because",
        "I think so",
        "A B C D E",
        "A, B",
        "(A) (B) (C)",
        "The answer is A or B",
        "The answer is A, B, C, D, E",
        "Answer: A/B",
        "The answer is Banana",
        "b",
    ],
)
def test_no_single_choice_is_unparsable(text):
    assert Outcome.UNPARSABLE == read(text)


def test_tag():
    assert 1.0 == read("A or C? <answer>(b)</answer>", place="tag")


def test_box():
    assert 1.0 == read(r"\boxed{\text{B}}", place="boxed")


def test_two_letters_in_a_tag_are_unparsable():
    assert Outcome.UNPARSABLE == read("<answer>A B</answer>", place="tag")


def test_missing_tag_is_unparsable():
    assert Outcome.UNPARSABLE == read("B", place="tag")


def test_letter_beyond_the_options_is_no_choice():
    assert Outcome.UNPARSABLE == read("The answer is F")


def test_more_options():
    assert 1.0 == read("The answer is F", "F", letters="ABCDEF")


def test_reference_in_brackets():
    assert 1.0 == read("B", "(B)")


@pytest.mark.parametrize("answer", [None, "", "X", "A or B"])
def test_reference_that_is_no_letter_is_a_failure(answer):
    assert Outcome.FAILED == read("B", answer)


@pytest.mark.parametrize("unit", ["A", "A ", "answer is ", "Answer:", "(", "((B", "B.", "\n", " ", "*"])
def test_a_megabyte_is_read_in_bounded_time(unit):
    start = time.monotonic()
    read(unit * (1_000_000 // len(unit)))
    assert time.monotonic() - start < 5


def test_letters_are_validated():
    with pytest.raises(ConfigError, match="letters"):
        validate(Config, {"letters": "abc"}, where="rewards 'choice'")
