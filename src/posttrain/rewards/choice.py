"""1 if the completion chooses the reference letter of a multiple-choice question, else 0.

A completion that names several letters where one is asked for has chosen none: it is unparsable, so listing all
options never pays.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from posttrain.config import Settings
from posttrain.reading import read_place
from posttrain.types import Outcome, Rollout, Score, Task

__all__ = ["Choice", "Config"]

_MAX_CHARACTERS = 20_000


class Config(Settings):
    """Which letters there are and where the chosen one stands."""

    letters: str = Field("ABCDE", pattern=r"^[A-Z]{2,26}$")
    """The options, as capital letters."""
    place: Literal["text", "tag", "boxed"] = "text"
    """text: after the last "answer is" or "answer:", or else alone on the last line; tag or boxed: in that place."""
    tag: str = Field("answer", min_length=1)
    """Name of the tag when place is tag."""


class Choice:
    """Compares letters; see the module."""

    def __init__(self, config: Config, name: str = "choice") -> None:
        self.config = config
        self.name = name
        one = rf"[(\[*_\s]{{0,4}}([{config.letters}])(?![A-Za-z0-9'’])[)\].:*_]{{0,4}}"
        also = rf"\s{{0,2}}(?:,|/|&|;|or|and|\s)\s{{0,2}}[(\[*_]{{0,3}}[{config.letters}](?![A-Za-z0-9'’])"
        self._phrase = re.compile(rf"\b[Aa]nswer(?:\s?(?:is|[:=])){{1,2}}{one}(?P<also>{also})?")
        self._line = re.compile(rf"[-\s]{{0,4}}{one}(?P<rest>.*)")
        self._alone = re.compile(rf"(?<![A-Za-z0-9])([{config.letters}{config.letters.lower()}])(?![A-Za-z0-9'’])")

    async def score(self, rollouts: Sequence[Rollout], task: Task) -> list[Score]:
        """Return 1 or 0 per rollout; unparsable where not exactly one letter is chosen."""
        wanted = self._only_letter(task.answer or "")
        if wanted is None:
            detail = f"the answer of task {task.id!r} is not one of {self.config.letters}; got {task.answer!r}"
            return [Score(name=self.name, value=None, outcome=Outcome.FAILED, detail=detail) for _ in rollouts]
        return [self._compare(self._chosen(rollout.text), wanted) for rollout in rollouts]

    def _compare(self, chosen: str | None, wanted: str) -> Score:
        if chosen is None:
            detail = f"not exactly one of {self.config.letters} chosen"
            return Score(name=self.name, value=None, outcome=Outcome.UNPARSABLE, detail=detail)
        return Score(name=self.name, value=float(chosen == wanted), outcome=Outcome.SCORED, detail=chosen)

    def _chosen(self, text: str) -> str | None:
        if self.config.place != "text":
            return self._only_letter(read_place(text, self.config.place, self.config.tag) or "")
        tail = text[-_MAX_CHARACTERS:].strip()
        phrases = list(self._phrase.finditer(tail))
        if phrases:
            return None if phrases[-1]["also"] else phrases[-1][1]
        return self._from_line(tail.rsplit("\n", 1)[-1])

    def _from_line(self, line: str) -> str | None:
        """The letter that stands alone on a line, or before its option as in ``(B) a whale``."""
        match = self._line.fullmatch(line)
        if match is None:
            return None
        rest = match["rest"].strip()
        marked = line[match.end(1) : match.end(1) + 1] in (")", "]", ".", ":", "*")
        if rest and (not marked or any(letter != match[1] for letter in self._capitals(rest))):
            return None
        return match[1]

    def _capitals(self, text: str) -> list[str]:
        return [letter for letter in self._alone.findall(text) if letter.isupper()]

    def _only_letter(self, piece: str) -> str | None:
        """The one letter that stands alone in a short piece; capitals win over small letters such as an article."""
        found = self._alone.findall(piece[:_MAX_CHARACTERS])
        letters = {letter for letter in found if letter.isupper()} or {letter.upper() for letter in found}
        return letters.pop() if len(letters) == 1 else None
