"""Find the part of a completion that states the answer: in a tag, in a box, after ####, or the whole text.

Every reader is linear in the text, takes the last occurrence, and returns None where there is none.
"""

from __future__ import annotations

from typing import Literal

Place = Literal["whole", "tag", "boxed", "hashes"]
"""Where an answer stands: the whole text, ``<tag>…</tag>``, ``\\boxed{…}``, or the rest of a line after ``####``."""


def read_place(text: str, place: Place, tag: str = "answer") -> str | None:
    """Return the text at the last such place; None if there is no such place. ``whole`` is the text as it is."""
    if place == "tag":
        return last_tag(text, tag)
    if place == "boxed":
        return last_boxed(text)
    if place == "hashes":
        return after_hashes(text)
    return text


def last_tag(text: str, tag: str) -> str | None:
    """Return what stands in the last closed ``<tag>…</tag>``."""
    end = text.rfind(f"</{tag}>")
    start = text.rfind(f"<{tag}>", 0, max(end, 0))
    if end < 0 or start < 0:
        return None
    return text[start + len(tag) + 2 : end].strip()


def last_boxed(text: str) -> str | None:
    """Return what stands in the last ``\\boxed{…}`` or ``\\fbox{…}`` with its braces balanced."""
    start, opening = max((text.rfind(name), name) for name in ("\\boxed{", "\\fbox{"))
    if start < 0:
        return None
    first = start + len(opening)
    depth = 1
    for index in range(first, len(text)):
        if text[index] == "{":
            depth += 1
        elif text[index] == "}":
            depth -= 1
        if depth == 0:
            return text[first:index].strip()
    return None


def after_hashes(text: str) -> str | None:
    """Return the rest of the line after the last ``####``, as GSM8K writes answers."""
    start = text.rfind("####")
    if start < 0:
        return None
    return text[start + 4 :].lstrip(" \t").split("\n", 1)[0].strip()
