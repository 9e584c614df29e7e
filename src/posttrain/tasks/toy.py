"""Small procedural tasks with exact answers, made from a seed: nothing to download, held-out problems included.

Each problem is a function of (generator, seed, number), and a hash of the problem alone decides whether it is a
training or a test problem, so that no seed mixes the two. ``style = "terse"`` writes prompts in digits, lower-case
letters and a few marks (for the toy model), ``"words"`` in plain English (for a pretrained one).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

import pydantic
from pydantic import Field

from posttrain.config import Settings, validate
from posttrain.errors import ConfigError, did_you_mean
from posttrain.tasks.order import TaskOrder, stable_hash

Row = dict[str, Any]

LETTERS = "abcdefghijklmnopqrstuvwxyz"
# fmt: off
WORDS = (
    "apple", "banana", "bottle", "butter", "button", "camera", "candle", "carpet", "cherry", "coffee", "cotton",
    "dinner", "doctor", "dragon", "engine", "family", "finger", "flower", "forest", "garden", "ginger", "guitar",
    "hammer", "island", "jacket", "kettle", "kitten", "ladder", "lemon", "letter", "market", "mirror", "monkey",
    "needle", "office", "orange", "pencil", "pepper", "planet", "pocket", "puzzle", "rabbit", "ribbon", "river",
    "rocket", "saddle", "school", "silver", "spider", "spring", "street", "summer", "table", "temple", "ticket",
    "tomato", "tunnel", "turtle", "valley", "velvet", "violin", "wallet", "window", "winter",
)
# fmt: on
TEST_SHARE = 10
"""One problem in so many is held out."""
PATIENCE = 200
"""Draws without a new problem after which a generator counts as exhausted."""
USUAL_SIZE = 1000
"""Rows if no size is asked for; fewer where there are fewer problems."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One problem in both styles."""

    key: str
    """What makes it the problem it is; decides the split."""
    terse: tuple[str, str]
    """Prompt and answer in few characters."""
    words: tuple[str, str]
    """Prompt and answer in plain English."""


class Options(Settings):
    """Options of every generator; each reads the ranges that concern it."""

    size: int | None = Field(None, gt=0)
    """Number of problems, all different; as many as there are, at most 1000 (addition: all), if not given."""
    seed: int | None = None
    """Which problems are drawn, in which order; the run's seed if not given."""
    split: Literal["train", "test"] | None = None
    """Training problems or held-out ones; the recipe's split if not given."""
    style: Literal["terse", "words"] = "terse"
    """Short prompts or plain English."""
    low: int = Field(1, ge=0)
    """Smallest number in sort, maximum and next_number."""
    high: int | None = Field(None, ge=1)
    """Largest number in sort and maximum (9 if low is 1), largest start in next_number (40)."""
    length: int | None = Field(None, ge=2, le=20)
    """Items to sort (3), compare (4), continue (3), or letters in a row (reverse 4, count_letter 6)."""
    step: int = Field(5, ge=1)
    """Largest step in next_number."""
    letters: bool = False
    """Sort letters instead of numbers."""
    alphabet: int = Field(26, ge=2, le=26)
    """How many letters sort, reverse and terse count_letter draw from."""
    names: tuple[str, ...] = ("sort", "maximum", "count_letter", "reverse", "next_number")
    """Generators that mix takes in turn."""

    def top(self, how_many: int) -> int:
        """Return ``high``, or without one what makes so many numbers from ``low`` on."""
        return self.low + how_many - 1 if self.high is None else self.high

    @pydantic.model_validator(mode="after")
    def _range_is_not_empty(self) -> Options:
        if self.high is not None and self.high < self.low:
            raise ValueError(f"high must not be below low; got low {self.low}, high {self.high}")
        return self


class Draws:
    """Whole numbers from a hash of (name, seed, number): the same on every machine, whatever was drawn before."""

    def __init__(self, *key: int | str) -> None:
        self._key = key
        self._count = 0

    def integer(self, low: int, high: int) -> int:
        """Return a number from low to high, both included."""
        self._count += 1
        return low + stable_hash(*self._key, self._count) % (high - low + 1)

    def integers(self, how_many: int, low: int, high: int) -> list[int]:
        """Return several numbers."""
        return [self.integer(low, high) for _ in range(how_many)]

    def text(self, how_many: int, alphabet: int) -> str:
        """Return several of the first letters of the alphabet."""
        return "".join(LETTERS[number] for number in self.integers(how_many, 0, alphabet - 1))


def sort(draws: Draws, options: Options) -> Problem:
    """Put numbers (or letters) in order: ``sort 5 3 9=`` gives ``3 5 9``."""
    how_many = options.length or 3
    if options.letters:
        items, kind = list(draws.text(how_many, options.alphabet)), "letters"
        right = sorted(items)
    else:
        numbers = draws.integers(how_many, options.low, options.top(9))
        items, right, kind = [str(n) for n in numbers], [str(n) for n in sorted(numbers)], "numbers"
    return Problem(
        key=" ".join(right),
        terse=(f"sort {' '.join(items)}=", " ".join(right)),
        words=(f"Sort these {kind}: {', '.join(items)}", ", ".join(right)),
    )


def maximum(draws: Draws, options: Options) -> Problem:
    """Find the largest number: ``max 5 3 9 2=`` gives ``9``."""
    numbers = draws.integers(options.length or 4, options.low, options.top(9))
    items, right = [str(number) for number in numbers], str(max(numbers))
    return Problem(
        key=" ".join(str(number) for number in sorted(numbers)),
        terse=(f"max {' '.join(items)}=", right),
        words=(f"What is the largest of these numbers: {', '.join(items)}?", right),
    )


def count_letter(draws: Draws, options: Options) -> Problem:
    """Count a letter: ``count a in banana=`` gives ``3``; random letters if terse, a common word in words."""
    if options.style == "words":
        word = WORDS[draws.integer(0, len(WORDS) - 1)]
    else:
        word = draws.text(options.length or 6, min(options.alphabet, 6))
    present = sorted(set(word))
    letter = present[draws.integer(0, len(present) - 1)]
    right = str(word.count(letter))
    return Problem(
        key=f"{letter} {word}",
        terse=(f"count {letter} in {word}=", right),
        words=(f"How many times does the letter {letter} appear in the word {word}?", right),
    )


def reverse(draws: Draws, options: Options) -> Problem:
    """Turn letters round: ``reverse abcd=`` gives ``dcba``; in words style, three words."""
    if options.style == "words":
        items = [WORDS[number] for number in draws.integers(options.length or 3, 0, len(WORDS) - 1)]
    else:
        items = list(draws.text(options.length or 4, options.alphabet))
    return Problem(
        key=" ".join(items),
        terse=(f"reverse {''.join(items)}=", "".join(reversed(items))),
        words=(f"Write these words in reverse order: {', '.join(items)}", ", ".join(reversed(items))),
    )


def next_number(draws: Draws, options: Options) -> Problem:
    """Continue a row of equal steps: ``next 2 4 6=`` gives ``8``."""
    start, step = draws.integer(options.low, options.top(40)), draws.integer(1, options.step)
    items = [str(start + step * place) for place in range(options.length or 3)]
    right = str(start + step * len(items))
    return Problem(
        key=" ".join(items),
        terse=(f"next {' '.join(items)}=", right),
        words=(f"What number comes next: {', '.join(items)}?", right),
    )


DRAWN: Mapping[str, Callable[[Draws, Options], Problem]] = {
    "sort": sort,
    "maximum": maximum,
    "count_letter": count_letter,
    "reverse": reverse,
    "next_number": next_number,
}
"""Generators that draw problems; addition lists all of its own, mix takes from several."""
GENERATORS = ("addition", *DRAWN, "mix")
"""All names."""


def toy_rows(name: str, options: Mapping[str, Any], *, seed: int = 0, split: str = "train") -> list[Row]:
    """Return rows with ``question``, ``answer`` and ``generator``; ConfigError for a name or option that is wrong."""
    if name not in GENERATORS:
        raise ConfigError(f"unknown generator '{name}'.{did_you_mean(name, GENERATORS)}")
    chosen = validate(Options, {"split": split, **options}, where=f"options of generator '{name}'")
    chosen = chosen.model_copy(update={"seed": seed if chosen.seed is None else chosen.seed})
    rows: list[Row] = []
    wanted = chosen.size or (10_000 if name == "addition" else USUAL_SIZE)
    for row in _rows(name, chosen):
        if len(rows) == wanted:
            break
        rows.append(row)
    if chosen.size is not None and len(rows) < chosen.size:
        raise ConfigError(
            f"generator '{name}' found {len(rows)} different {chosen.split} problems in these ranges; size asks for "
            f"{chosen.size}. Lower size, or widen the ranges (low, high, length, step, alphabet)."
        )
    return rows


def _rows(name: str, options: Options) -> Iterator[Row]:
    if name == "mix":
        yield from _in_turn(options)
        return
    problems = _sums(options) if name == "addition" else _drawn(name, options)
    for problem in problems:
        question, answer = problem.terse if options.style == "terse" else problem.words
        yield {"question": question, "answer": answer, "generator": name}


def _in_turn(options: Options) -> Iterator[Row]:
    """Take one problem of each named generator after the other; one that is exhausted drops out."""
    for name in options.names:
        if name not in GENERATORS or name == "mix":
            raise ConfigError(f"mix cannot take '{name}'.{did_you_mean(name, set(GENERATORS) - {'mix'})}")
    sources = [_rows(name, options) for name in options.names]
    while sources:
        alive = []
        for source in sources:
            row = next(source, None)
            if row is not None:
                alive.append(source)
                yield row
        sources = alive


def _drawn(name: str, options: Options) -> Iterator[Problem]:
    """Draw problems of the split, each prompt once, until nothing new has come for a long while."""
    seen: set[str] = set()
    idle = 0
    for number in count():
        problem = DRAWN[name](Draws(name, options.seed or 0, number), options)
        prompt = problem.terse[0] if options.style == "terse" else problem.words[0]
        if prompt in seen or _split(name, problem.key) != options.split:
            idle += 1
            if idle > PATIENCE * TEST_SHARE:
                return
            continue
        idle = 0
        seen.add(prompt)
        yield problem


def _sums(options: Options) -> Iterator[Problem]:
    """Two numbers of two digits; the terse answer is the sum's three digits, the least significant first.

    The digits come in the order in which they can be computed: the reversed form that small models learn.
    """
    order = TaskOrder(10_000, stable_hash("addition", options.seed or 0))
    for place in range(order.size):
        left, right = divmod(order.index(place), 100)
        problem = Problem(
            key=f"{left}+{right}",
            terse=(f"{left:02d}+{right:02d}=", f"{left + right:03d}"[::-1]),
            words=(f"What is {left} + {right}?", str(left + right)),
        )
        if _split("addition", problem.key) == options.split:
            yield problem


def _split(name: str, key: str) -> str:
    return "test" if stable_hash("split", name, key) % TEST_SHARE == 0 else "train"
