"""Every way to write a number, the ways that are refused, and hostile megabytes."""

import time

import pytest

from posttrain.rewards.number import Config, Number
from posttrain.types import Outcome
from tests.rewards.rollouts import score_one


def read(text, answer="42", **options):
    score = score_one(Number(Config(**options)), text, answer)
    return score.value if score.outcome is Outcome.SCORED else score.outcome


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("42", "42"),
        ("The answer is 42.", "42"),
        ("41, then 42", "42"),
        ("42.0", "42"),
        ("042", "42"),
        ("42 apples", "42"),
        ("42kg", "42"),
        ("$42", "42"),
        ("-$42", "-42"),
        ("$-42", "-42"),
        ("= -42", "-42"),
        ("− 42", "-42"),
        ("+42", "42"),
        ("10-42", "42"),
        ("1,234,567", "1234567"),
        ("1,234.5", "1234.5"),
        ("1'234'567", "1234567"),
        ("1\u202f234\u202f567", "1234567"),
        (r"1{,}234", "1234"),
        (r"1\,234", "1234"),
        (".5", "0.5"),
        ("0.50", "1/2"),
        ("5.", "5"),
        ("3/4", "0.75"),
        ("3 / 4", "0.75"),
        ("-3/4", "-0.75"),
        ("1 1/2", "1.5"),
        ("-1 1/2", "-1.5"),
        (r"\frac{3}{4}", "0.75"),
        (r"-\dfrac{3}{4}", "-0.75"),
        ("1.5e3", "1500"),
        ("2E-2", "0.02"),
        ("3 × 10^5", "300000"),
        (r"3 \times 10^{-5}", "0.00003"),
        ("3x10^2", "300"),
        ("50%", "50%"),
        (r"50\%", "50 %"),
        (r"$\$1{,}200$", "1200"),
        ("**42**", "42"),
        ("(42)", "42"),
    ],
)
def test_written_ways_of_one_number(text, answer):
    assert 1.0 == read(text, answer)


@pytest.mark.parametrize(
    ("text", "answer"), [("-42", "42"), ("4.2", "42"), ("42 43", "42"), ("420", "42"), ("42e1", "42"), ("42/2", "42")]
)
def test_other_numbers_are_wrong(text, answer):
    assert 0.0 == read(text, answer)


@pytest.mark.parametrize(
    "text",
    ["", "none", "1,23", "1.234,56", "12,3456", "1.2.3", "3/0", "1e999999999", "10^1e9", "2^10", "x_1", "9" * 1000],
)
def test_what_is_not_one_number_is_unparsable(text):
    assert Outcome.UNPARSABLE == read(text)


def test_exactness_beyond_float64():
    assert 0.0 == read("0.1000000000000000000001", "0.1")


def test_third_is_not_a_rounded_third_without_tolerance():
    assert 0.0 == read("0.3333", "1/3")


def test_absolute_tolerance():
    assert 1.0 == read("0.3333", "1/3", absolute_tolerance=1e-3)


def test_relative_tolerance():
    assert (1.0, 0.0) == (
        read("1009", "1000", relative_tolerance=0.01),
        read("1011", "1000", relative_tolerance=0.01),
    )


@pytest.mark.parametrize(("rule", "expected"), [("either", (1.0, 1.0)), ("value", (0.0, 1.0)), ("ignore", (1.0, 0.0))])
def test_percent_rule_against_50_and_one_half(rule, expected):
    assert expected == (read("50%", "50", percent=rule), read("50%", "0.5", percent=rule))


def test_a_percent_reference_against_a_plain_number():
    assert 1.0 == read("0.5", "50%", percent="value")


@pytest.mark.parametrize("text", ["٤٢", "４２", "४२"])
def test_digits_of_other_scripts_are_refused_by_default(text):
    assert Outcome.UNPARSABLE == read(text)


@pytest.mark.parametrize("text", ["٤٢", "４２", "४२"])
def test_digits_of_other_scripts_can_be_read(text):
    assert 1.0 == read(text, unicode_digits=True)


@pytest.mark.parametrize("text", ["4²", "④②", "Ⅳ"])
def test_superscripts_and_circled_digits_are_no_digits(text):
    assert 1.0 != read(text, unicode_digits=True)


def test_place_hashes():
    assert 1.0 == read("1+1\n#### 42\nand 7", place="hashes")


def test_place_boxed():
    assert 1.0 == read(r"\boxed{x = 42} of 50", place="boxed")


def test_place_tag():
    assert 1.0 == read("<answer>42</answer> 7", place="tag")


def test_missing_place_is_unparsable():
    assert Outcome.UNPARSABLE == read("42", place="boxed")


def test_reference_that_is_no_number_is_a_failure():
    score = score_one(Number(Config()), "42", "forty")
    assert (Outcome.FAILED, True) == (score.outcome, "'forty'" in score.detail)


def test_missing_reference_is_a_failure():
    assert Outcome.FAILED == read("42", None)


@pytest.mark.parametrize(
    "unit", ["1", "1 ", "1,", "1.", "1e", "-", "1/", "\\frac{", "1 1/", "٤", "1%", "\u202f1", "^("]
)
def test_a_megabyte_is_read_in_bounded_time(unit):
    text = unit * (1_000_000 // len(unit))
    start = time.monotonic()
    read(text)
    assert time.monotonic() - start < 5


def test_a_number_cut_by_the_reading_limit_does_not_count():
    assert Outcome.UNPARSABLE == read("9" * 30_000)


def test_answer_after_a_megabyte_is_found():
    assert 1.0 == read("word " * 200_000 + "42")


def test_answer_before_a_megabyte_of_words_is_found():
    assert 1.0 == read("42" + " word" * 200_000)


def test_detail_says_what_was_read():
    assert "1234" == score_one(Number(Config()), "it is 1,234.").detail
