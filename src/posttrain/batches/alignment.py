"""A teacher that reads other tokens than the student: its own row for the same text, and where both rows meet.

The teacher is asked for log-probabilities of its OWN tokens: its template's prompt for the task's messages, then the
student's text cut into the teacher's tokens, then, if the student ended its turn, the teacher's end of turn. Tokens of
both sides that begin and end at the same characters are a span (`functional.distill_aligned`); by the chain rule its
log-probability is the sum of its tokens', which both sides can be compared in.

Limits. Only one way to cut the text is scored on either side: the student's as sampled, the teacher's as its tokenizer
cuts it; other cuts of the same text are not summed over. Rows meet up to the first special token inside the text, the
first bytes that are no character, or the first character that the teacher's tokens do not give back (unknown tokens,
normalisation), because behind it the teacher would judge another text. A text that was cut off loses its last span
too: how it would have gone on decides how the teacher cuts it. One turn of text, no images, no tools.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from posttrain.errors import DataError
from posttrain.functional.distill_aligned import Span, shared_spans, span_advantages
from posttrain.tasks.chat import Chat
from posttrain.types import Ending, Sample

REPLACEMENT = "\ufffd"
"""What bytes that are no character decode to."""
CONTEXT = 8
"""Tokens before a token that are decoded with it, so that blanks look as they do in the row."""
UNFINISHED = 3
"""The most bytes of a character that can still become one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pieces:
    """The text of a row's tokens, as far as it is plain text, and where in it tokens end."""

    text: str
    """Characters up to the last token that ends one."""
    ends: tuple[int, ...]
    """Number of characters up to the end of each piece, strictly ascending."""
    tokens: tuple[tuple[int, ...], ...]
    """Indices of each piece's tokens: one, or several that share a character."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Asked:
    """What the teacher is asked about one sample."""

    row: Sample
    """The teacher's row: its prompt, then its tokens of the student's text."""
    spans: tuple[Span, ...]
    """Places in the student's and in the teacher's row that cover the same text."""

    def taught(
        self, own: np.ndarray, theirs: np.ndarray, *, spread: Literal["divide", "broadcast"] = "broadcast"
    ) -> np.ndarray:
        """Return what the teacher gives each of the student's tokens, float64 [L]; NaN where no span is.

        ``own`` [L] and ``theirs`` are log-probabilities along both rows. A span of one student token has the teacher's
        sum itself; in a longer one each token's difference to ``own`` is the span's (see `span_advantages`).
        """
        student, teacher = torch.from_numpy(own), torch.from_numpy(theirs)
        result = (student + span_advantages(student, teacher, self.spans, spread=spread)).numpy()
        covered = np.zeros(len(own), dtype=bool)
        for mine, others in self.spans:
            covered[list(mine)] = True
            if len(mine) == 1:
                result[mine[0]] = theirs[list(others)].sum()
        return np.where(covered, result, np.nan)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Alignment:
    """A student and a teacher of other tokens."""

    student: Chat
    """The student's tokenizer and template."""
    teacher: Chat
    """The teacher's."""
    window: int
    """The most tokens a teacher's row may have."""

    def ask(self, sample: Sample) -> Asked | None:
        """Return the teacher's row for a sample and where both meet; None where they meet nowhere or it is too long.

        Raises DataError for a sample of several turns, with images, or without a task.
        """
        refuse_unfit(sample)
        assert sample.task is not None
        begin = sample.prompt_length
        prompt, sampled = sample.ids[:begin].tolist(), sample.ids[begin:].tolist()
        closed = sample.ending is Ending.STOP and bool(sampled) and sampled[-1] in self.student.stop_ids
        body = sampled[:-1] if closed else sampled
        own = pieces(self.student, prompt, body)
        asked, answer = self.teacher.answer_ids(sample.task.messages, own.text)
        theirs = pieces(self.teacher, asked, answer)
        ended = closed and sum(map(len, own.tokens)) == len(body)
        spans = meetings(own, theirs, ended=ended)
        if ended and theirs.text == own.text:
            spans.append(((len(body),), (len(answer),)))
            answer = (*answer, self.teacher.end_of_turn_id)
        if not spans or len(asked) + len(answer) > self.window:
            return None
        moved = tuple((shifted(mine, begin), shifted(others, len(asked))) for mine, others in spans)
        return Asked(row=teacher_row(sample, asked, answer), spans=moved)


def refuse_unfit(sample: Sample) -> None:
    """Raise DataError for a sample that only a teacher of the student's tokens can score."""
    what = "has no task" if sample.task is None else "has images" if sample.images else ""
    if not what and sample.turns.max(initial=0) > 0:
        what = "has several turns"
    if what:
        raise DataError(
            f"group {sample.group} rollout {sample.rollout} {what}: with cross_tokenizer a teacher scores the one "
            "text answer to a task's messages. Take a teacher with the student's tokenizer for anything else"
        )


def pieces(chat: Chat, before: Sequence[int], ids: Sequence[int]) -> Pieces:
    """Return the text of ``ids`` behind the row ``before``, up to a special token or bytes that are no character."""
    special = {*chat.tokenizer.all_special_ids, *chat.stop_ids}
    text, known = "", list(before)[-CONTEXT:]
    ends: list[int] = []
    tokens: list[tuple[int, ...]] = []
    waiting: list[int] = []
    for index, token in enumerate(ids):
        if token in special:
            break
        waiting.append(index)
        longer = known + [ids[place] for place in waiting]
        added = addition(chat, known, longer)
        if added is None:
            break
        if added and not added.endswith(REPLACEMENT):
            text += added
            ends.append(len(text))
            tokens.append(tuple(waiting))
            known, waiting = longer[-CONTEXT:], []
    return Pieces(text=text, ends=tuple(ends), tokens=tuple(tokens))


def addition(chat: Chat, known: Sequence[int], longer: Sequence[int]) -> str | None:
    """Return the text that ``longer`` has beyond ``known``; None once it can no longer become plain characters."""
    before, after = chat.decode(known), chat.decode(longer)
    if not after.startswith(before):
        return None
    added = after[len(before) :]
    whole = added.rstrip(REPLACEMENT)
    return None if REPLACEMENT in whole or len(added) - len(whole) > UNFINISHED else added


def meetings(own: Pieces, theirs: Pieces, *, ended: bool) -> list[Span]:
    """Return the spans of both texts' common beginning, as token indices; without the last one of a cut-off text."""
    differ = (place for place, (a, b) in enumerate(zip(own.text, theirs.text, strict=False)) if a != b)
    common = next(differ, min(len(own.text), len(theirs.text)))
    found = shared_spans(*([end for end in side.ends if end <= common] for side in (own, theirs)))
    if found and not ended and own.ends[found[-1][0][-1]] == len(own.text):
        found = found[:-1]
    return [(joined(own, mine), joined(theirs, others)) for mine, others in found]


def joined(side: Pieces, chosen: Sequence[int]) -> tuple[int, ...]:
    """The token indices of several pieces."""
    return tuple(token for piece in chosen for token in side.tokens[piece])


def shifted(places: Sequence[int], by: int) -> tuple[int, ...]:
    """Indices of an answer as places in its row."""
    return tuple(place + by for place in places)


def teacher_row(sample: Sample, prompt: Sequence[int], answer: Sequence[int]) -> Sample:
    """The row that the teacher scores, answer and all; nothing in it trains."""
    ids = np.asarray([*prompt, *answer], dtype=np.int64)
    mask = np.arange(len(ids)) >= len(prompt)
    return Sample(
        ids=ids,
        loss_mask=mask,
        prompt_length=len(prompt),
        group=sample.group,
        rollout=sample.rollout,
        advantages=np.zeros(len(ids)),
        rollout_logprobs=np.full(len(ids), np.nan),
        versions=np.where(mask, 0, -1),
        turns=np.where(mask, 0, -1),
        task=sample.task,
    )
