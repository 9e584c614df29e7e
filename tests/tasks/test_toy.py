"""Procedural tasks: right answers, disjoint splits, the same rows from the same seed."""

import re

import pytest

from posttrain.errors import ConfigError
from posttrain.tasks.toy import GENERATORS, WORDS, toy_rows

DRAWN = ["sort", "maximum", "count_letter", "reverse", "next_number"]


def questions(name: str, **options) -> list[str]:
    return [row["question"] for row in toy_rows(name, options)]


def test_addition_has_ten_thousand_pairs_in_disjoint_splits():
    train, test = questions("addition"), questions("addition", split="test")
    assert 10_000 == len(set(train) | set(test)) == len(train) + len(test)
    assert 900 <= len(test) <= 1100


def test_addition_is_prompted_and_answered_as_the_baseline():
    answers = {
        row["question"]: row["answer"] for row in toy_rows("addition", {}) + toy_rows("addition", {"split": "test"})
    }
    assert ("231", "210", "891") == (answers["47+85="], answers["07+05="], answers["99+99="])


def test_addition_in_words_answers_as_people_do():
    rows = toy_rows("addition", {"style": "words", "size": 50})
    for row in rows:
        left, right = re.fullmatch(r"What is (\d+) \+ (\d+)\?", row["question"]).groups()
        assert str(int(left) + int(right)) == row["answer"]


def test_sort_is_sorted():
    for row in toy_rows("sort", {"size": 50}):
        items = row["question"].removeprefix("sort ").removesuffix("=").split()
        assert " ".join(sorted(items, key=int)) == row["answer"]


def test_sort_puts_numbers_in_the_order_of_numbers():
    rows = toy_rows("sort", {"size": 50, "low": 1, "high": 200})
    assert all([int(n) for n in row["answer"].split()] == sorted(int(n) for n in row["answer"].split()) for row in rows)


def test_sort_letters():
    row = toy_rows("sort", {"letters": True, "length": 5, "size": 1})[0]
    letters = row["question"].removeprefix("sort ").removesuffix("=").split()
    assert (5, " ".join(sorted(letters))) == (len(letters), row["answer"])


def test_sort_in_words():
    row = toy_rows("sort", {"style": "words", "size": 1})[0]
    assert re.fullmatch(r"Sort these numbers: \d, \d, \d", row["question"])
    assert re.fullmatch(r"\d, \d, \d", row["answer"])


def test_maximum_is_the_largest():
    for row in toy_rows("maximum", {"size": 50, "low": 5, "high": 120}):
        numbers = [int(n) for n in row["question"].removeprefix("max ").removesuffix("=").split()]
        assert (4, str(max(numbers))) == (len(numbers), row["answer"])


def test_count_letter_counts():
    for row in toy_rows("count_letter", {"size": 50}):
        letter, word = re.fullmatch(r"count (\w) in (\w+)=", row["question"]).groups()
        assert str(word.count(letter)) == row["answer"]


def test_count_letter_in_words_uses_real_words():
    for row in toy_rows("count_letter", {"size": 50, "style": "words"}):
        assert row["question"].split()[-1].removesuffix("?") in WORDS


def test_reverse_turns_round():
    for row in toy_rows("reverse", {"size": 50}):
        assert row["question"].removeprefix("reverse ").removesuffix("=") == row["answer"][::-1]


def test_reverse_in_words_turns_words_round():
    row = toy_rows("reverse", {"size": 1, "style": "words"})[0]
    items = row["question"].removeprefix("Write these words in reverse order: ").split(", ")
    assert ", ".join(items[::-1]) == row["answer"]


def test_next_number_continues_the_steps():
    for row in toy_rows("next_number", {"size": 50}):
        one, two, three = (int(n) for n in row["question"].removeprefix("next ").removesuffix("=").split())
        assert (two - one, str(three + two - one)) == (three - two, row["answer"])


def test_mix_takes_the_named_generators_in_turn():
    rows = toy_rows("mix", {"names": ["sort", "reverse"], "size": 6})
    assert ["sort", "reverse"] * 3 == [row["generator"] for row in rows]


def test_mix_goes_on_when_one_is_exhausted():
    rows = toy_rows("mix", {"names": ["sort", "reverse"], "high": 2, "size": 100})
    assert {"sort", "reverse"} == {row["generator"] for row in rows}
    assert "reverse" == rows[-1]["generator"]


@pytest.mark.parametrize("name", ["nothing", "mix"])
def test_mix_of_what_it_cannot_take(name):
    with pytest.raises(ConfigError, match=f"mix cannot take '{name}'"):
        toy_rows("mix", {"names": [name]})


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("style", ["terse", "words"])
def test_train_and_test_share_no_prompt_whatever_the_seeds(name, style):
    train = set(questions(name, style=style, seed=0, size=150))
    test = {row["question"] for row in toy_rows(name, {"style": style}, seed=1, split="test")}
    assert test
    assert not train & test


def test_held_out_sorting_problems_are_held_out_in_every_order():
    def multisets(split: str) -> set[str]:
        return {row["answer"] for row in toy_rows("sort", {"split": split})}

    assert not multisets("train") & multisets("test")


@pytest.mark.parametrize("name", GENERATORS)
def test_terse_prompts_keep_to_the_toy_alphabet(name):
    for row in toy_rows(name, {"size": 100}):
        assert re.fullmatch(r"[0-9a-z +\-=,:?.]+", row["question"] + row["answer"])


@pytest.mark.parametrize("name", GENERATORS)
def test_the_same_seed_gives_the_same_rows(name):
    assert toy_rows(name, {"size": 20}, seed=3) == toy_rows(name, {"size": 20}, seed=3)


@pytest.mark.parametrize("name", GENERATORS)
def test_another_seed_gives_other_rows(name):
    assert toy_rows(name, {"size": 20}, seed=3) != toy_rows(name, {"size": 20}, seed=4)


def test_an_options_seed_wins_over_the_runs():
    assert toy_rows("sort", {"size": 20, "seed": 3}, seed=9) == toy_rows("sort", {"size": 20}, seed=3)


@pytest.mark.parametrize("name", GENERATORS)
def test_a_smaller_size_is_the_beginning_of_a_larger_one(name):
    assert toy_rows(name, {"size": 10}) == toy_rows(name, {"size": 30})[:10]


@pytest.mark.parametrize("name", DRAWN)
def test_no_prompt_comes_twice(name):
    found = questions(name)
    assert len(set(found)) == len(found)


def test_all_problems_of_a_small_range_if_no_size_is_given():
    found = {
        tuple(q.split()[1:]) for split in ("train", "test") for q in questions("maximum", low=1, high=2, split=split)
    }
    assert 16 == len(found)


def test_more_problems_than_there_are():
    with pytest.raises(ConfigError, match=r"found \d+ different train problems in these ranges; size asks for 500"):
        toy_rows("maximum", {"high": 2, "size": 500})


def test_unknown_generator():
    with pytest.raises(ConfigError, match=r"unknown generator 'additoin'. Did you mean 'addition'\?"):
        toy_rows("additoin", {})


def test_unknown_option():
    with pytest.raises(
        ConfigError, match=r"options of generator 'sort': unknown key 'lenght'. Did you mean 'length'\?"
    ):
        toy_rows("sort", {"lenght": 3})


def test_an_empty_range():
    with pytest.raises(ConfigError, match="high must not be below low; got low 9, high 3"):
        toy_rows("sort", {"low": 9, "high": 3})


def test_low_alone_moves_the_range():
    assert all(int(n) >= 50 for row in toy_rows("sort", {"low": 50, "size": 20}) for n in row["answer"].split())


def test_a_split_that_generators_do_not_have():
    with pytest.raises(ConfigError, match=r"'split'.*'train' or 'test'"):
        toy_rows("sort", {}, split="validation")
