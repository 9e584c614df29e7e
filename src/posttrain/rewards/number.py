"""1 if the number a completion states equals the reference number, else 0, in exact rational arithmetic.

Read are signs, thousands separators (comma, apostrophe, thin and no-break space, LaTeX ``{,}``), decimals,
scientific notation (``1.5e3``, ``3 × 10^5``), fractions (``3/4``, ``\\frac{3}{4}``), mixed numbers (``1 1/2``)
and percent. Refused as unparsable, never guessed: digits grouped otherwise than by threes (``1,23``), digits of
other scripts (unless asked for), exponents beyond ±400, division by zero.
"""

from __future__ import annotations

import collections
import re
import unicodedata
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from pydantic import Field

from posttrain.config import Settings
from posttrain.reading import read_place
from posttrain.types import Outcome, Rollout, Score, Task

__all__ = ["Config", "Number"]

_REACH = 1_000
_MAX_NUMBER = 400
_SPACES = "\u00a0\u2009\u202f"
_PLAIN = rf"(?:\d(?:[\d,.'’]|[{_SPACES}](?=\d))*|\.\d+)"
_NUMBER = re.compile(
    rf"(?P<sign>[-+]\s?)?[$€£¥]?\s?(?:(?P<whole>\d{{1,9}})\s(?=\d{{1,9}}/\d))?(?P<top>{_PLAIN})(?:[eE](?P<power>[-+]?\d+))?"
    rf"(?:\s?/\s?(?P<bottom>{_PLAIN}))?"
    r"(?:\s?(?:[x×*]|\\times|\\cdot)\s?10\s?(?:\^|\*\*)\s?\{?(?P<ten>[-+]?\d+)\}?)?(?P<percent>\s?%)?"
)
_GROUPED = re.compile(r"\d{1,3}(?:([,'])\d{3})(?:\1\d{3})*(?:\.\d*)?")
_SIMPLE = re.compile(r"(?:\d+\.?\d*|\.\d+)")
_LAST_DIGIT = re.compile(r"\d\D*\Z")
_LATEX = re.compile(r"\\[dt]?frac\s?\{\s?([^{}]{1,60}?)\s?\}\s?\{\s?([^{}]{1,60}?)\s?\}")


class Config(Settings):
    """Where the number stands and when two numbers are equal."""

    place: Literal["last", "tag", "boxed", "hashes"] = "last"
    """last: the last number of the completion; else the last number in that place."""
    tag: str = Field("answer", min_length=1)
    """Name of the tag when place is tag."""
    absolute_tolerance: float = Field(0.0, ge=0, allow_inf_nan=False)
    """Difference that still counts as equal."""
    relative_tolerance: float = Field(0.0, ge=0, allow_inf_nan=False)
    """The same, as a share of the reference number."""
    percent: Literal["either", "value", "ignore"] = "either"
    """value: 50 % is 0.5; ignore: 50 % is 50; either: where only one side has the sign, both readings count."""
    unicode_digits: bool = False
    """Read digits of other scripts (Arabic-Indic, full-width, …) as digits; else such a number is unparsable."""


class Number:
    """Compares numbers; see the module."""

    def __init__(self, config: Config, name: str = "number") -> None:
        self.config = config
        self.name = name

    async def score(self, rollouts: Sequence[Rollout], task: Task) -> list[Score]:
        """Return 1 or 0 per rollout; unparsable where no number stands, failed where the task has none."""
        try:
            wanted = _read_last(task.answer or "", unicode_digits=True)
        except ValueError as error:
            detail = f"the answer of task {task.id!r} is not a number: {error}; got {str(task.answer)[:60]!r}"
            return [Score(name=self.name, value=None, outcome=Outcome.FAILED, detail=detail) for _ in rollouts]
        return [self._compare(rollout.text, wanted) for rollout in rollouts]

    def _compare(self, text: str, wanted: tuple[Fraction, bool]) -> Score:
        try:
            stated = _read_last(self._piece(text), unicode_digits=self.config.unicode_digits)
        except ValueError as error:
            return Score(name=self.name, value=None, outcome=Outcome.UNPARSABLE, detail=str(error))
        equal = any(self._close(one, other) for one, other in self._readings(stated, wanted))
        return Score(name=self.name, value=float(equal), outcome=Outcome.SCORED, detail=_show(*stated))

    def _piece(self, text: str) -> str:
        if self.config.place == "last":
            return text
        piece = read_place(text, self.config.place, self.config.tag)
        if piece is None:
            raise ValueError(f"no answer at place {self.config.place!r}")
        return piece

    def _readings(
        self, stated: tuple[Fraction, bool], wanted: tuple[Fraction, bool]
    ) -> list[tuple[Fraction, Fraction]]:
        """The pairs of values of which one must be equal, by the percent rule."""
        as_written = (stated[0], wanted[0])
        as_value = tuple(value / 100 if percent else value for value, percent in (stated, wanted))
        if self.config.percent == "ignore" or stated[1] == wanted[1]:
            return [as_written]
        pairs = [(as_value[0], as_value[1])]
        return [*pairs, as_written] if self.config.percent == "either" else pairs

    def _close(self, stated: Fraction, wanted: Fraction) -> bool:
        allowed = max(Fraction(self.config.absolute_tolerance), Fraction(self.config.relative_tolerance) * abs(wanted))
        return abs(stated - wanted) <= allowed


def _read_last(text: str, *, unicode_digits: bool) -> tuple[Fraction, bool]:
    """Return (value, has a percent sign) of the last number in a text; raise ValueError with the reason."""
    last_digit = _LAST_DIGIT.search(text)
    if last_digit is None:
        raise ValueError("no number in the completion")
    near = text[max(0, last_digit.start() - _REACH) : last_digit.start() + _REACH]
    if last_digit.start() > _REACH:
        near = re.sub(r"^\S*", "", near, count=1)  # a number cut by the reach is not a number
    tail = _plain(near)
    matches = collections.deque(_NUMBER.finditer(tail), maxlen=1)
    if not matches:
        raise ValueError(f"a number of more than {_REACH} characters")
    match = matches[0]
    written = match.group()
    if len(written) > _MAX_NUMBER:
        raise ValueError(f"a number of {len(written)} characters, the limit is {_MAX_NUMBER}")
    if not unicode_digits and any(c.isdigit() and not c.isascii() for c in written):
        raise ValueError("digits of another script (unicode_digits = true reads them)")
    before = tail[: match.start()].rstrip("{(")
    if before.endswith(("^", "_")):
        raise ValueError("the last number is an exponent or an index")
    return _value(match, negative=_negative(match, before)), match["percent"] is not None


def _plain(text: str) -> str:
    """Write LaTeX and typographic variants in plain signs; linear in the text."""
    for variant, plain in (("{,}", ","), ("\\,", "\u2009"), ("\\!", ""), ("\\%", "%"), ("\\$", "$"), ("−", "-")):
        text = text.replace(variant, plain)
    return _LATEX.sub(r"\1/\2", text)


def _negative(match: re.Match[str], before: str) -> bool:
    """A minus is a sign unless it stands directly behind a number, a word or a bracket, as in 10-5."""
    sign = match["sign"]
    return sign is not None and sign[0] == "-" and not (before[-1:].isalnum() or before[-1:] in (")", "]", "}"))


def _value(match: re.Match[str], *, negative: bool) -> Fraction:
    value = _decimal(match["top"])
    if match["bottom"] is not None:
        bottom = _decimal(match["bottom"])
        if bottom == 0:
            raise ValueError("division by zero")
        value /= bottom
    if match["whole"] is not None:
        value += _decimal(match["whole"])
    for power in (match["power"], match["ten"]):
        if power is not None:
            value *= Fraction(10) ** _exponent(power)
    return -value if negative else value


def _decimal(written: str) -> Fraction:
    """Return the exact value of digits with optional separators; raise ValueError for other groupings."""
    digits = "".join(str(unicodedata.digit(c)) if c.isdigit() and not c.isascii() else c for c in written)
    digits = digits.replace("’", "'").rstrip(",.'") if len(digits) > 1 else digits
    for space in _SPACES:
        digits = digits.replace(space, "'")
    if _GROUPED.fullmatch(digits):
        digits = digits.replace(",", "").replace("'", "")
    if not _SIMPLE.fullmatch(digits):
        raise ValueError(f"{written[:40]!r} is not one number")
    return Fraction(Decimal(digits))


def _exponent(written: str) -> int:
    if len(written) > 5 or abs(int(written)) > _MAX_NUMBER:
        raise ValueError(f"an exponent of {written[:20]}, the limit is {_MAX_NUMBER}")
    return int(written)


def _show(value: Fraction, percent: bool) -> str:
    written = str(value) if value.denominator == 1 or len(str(value)) < 20 else f"about {float(value):.12g}"
    return written[:60] + (" %" if percent else "")
