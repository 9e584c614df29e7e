"""Messages to tokens and back, exactly: what SFT trains is what RL samples, and nothing sampled is tokenised twice.

A prompt is the template's text, tokenised whole without further special tokens. A turn is the ids that follow
the ids of its prompt, then the one token that closes it. A next prompt is the row so far, then the scaffold.
The loss mask comes from this bookkeeping, never from comparing ids with the padding token.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import nan
from typing import Any

from posttrain.errors import DataError, ModelError
from posttrain.tasks.template import Template, Tools, Turn
from posttrain.types import Message, Segment


@dataclass(frozen=True, kw_only=True, slots=True)
class Witness:
    """Whether a template keeps what was sampled when the conversation goes on."""

    keeps_over_tool: bool | None
    """Over a tool's reply; None if the template has no tool messages."""
    keeps_over_user: bool
    """Over a user's next message, thinking included."""
    detail: str
    """What that means for a run, in a sentence or two."""


class Chat:
    """A tokenizer with its chat template."""

    def __init__(self, tokenizer: Any, *, template: str | None = None, eos_ids: Iterable[int] = ()) -> None:
        """``template``: jinja text or file instead of the tokenizer's; ``eos_ids``: the generation config's.

        Raises ModelError without a template, or if nothing could ever end a turn.
        """
        self.tokenizer = tokenizer
        self._template = Template(tokenizer, template=template)
        close = tokenizer.convert_tokens_to_ids(self._template.close) if self._template.close else None
        end = tokenizer.eos_token_id if close is None else close
        if end is None:
            raise ModelError(
                "the chat template ends no turn with a special token and the tokenizer has no eos_token, so sampling "
                "could never stop. Set the tokenizer's eos_token or give another template with model.chat_template."
            )
        self.end_of_turn_id = int(end)
        """The token that the model writes to end its turn."""
        known = {self.end_of_turn_id, *eos_ids, *([] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id])}
        self.stop_ids = frozenset(int(token) for token in known)
        """All tokens that end a completion."""
        self.template_hash = self._hash()
        """sha256 hex of the template and the special tokens."""

    def prompt_ids(self, messages: Sequence[Message], tools: Tools | None = None) -> tuple[int, ...]:
        """Return the ids after which the assistant writes; ModelError if the template refuses the messages."""
        return self._encode(self._template.render(messages, tools, prompt=True))

    def answer_ids(self, messages: Sequence[Message], text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the prompt's ids and those of ``text``, as it stands, behind them; the turn is left open.

        Raises ModelError if the template refuses the messages.
        """
        prompt = self._template.render(messages, prompt=True)
        ids = self._encode(prompt)
        return ids, self._continue(prompt, ids, text)

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Return the text of ids, by default without special tokens."""
        return str(
            self.tokenizer.decode(list(ids), skip_special_tokens=skip_special, clean_up_tokenization_spaces=False)
        )

    def encode_demonstration(
        self, messages: Sequence[Message], tools: Tools | None = None, *, last_only: bool = False
    ) -> Segment:
        """Return the row that ends with the last assistant message; its turns train, closing token included.

        Earlier assistant messages train too, but for ``last_only`` and for those that the template rewrites later
        (drops their thinking, say): `demonstration_segments` keeps these in rows of their own.
        Raises DataError if the conversation is no demonstration, ModelError if the template cannot say it.
        """
        if last_only:
            return self._segment(self._turns(messages, tools)[-1:])
        return self.demonstration_segments(messages, tools)[-1]

    def demonstration_segments(
        self, messages: Sequence[Message], tools: Tools | None = None, *, after: int = 0
    ) -> tuple[Segment, ...]:
        """Return rows in which every assistant message trains exactly once; one row unless history is rewritten.

        The first ``after`` messages are the prompt: assistant messages among them do not train.
        """
        rows: list[list[Turn]] = []
        for turn in (turn for turn in self._turns(messages, tools) if turn.index >= after):
            if rows and self._template.close and turn.prompt.startswith(rows[-1][-1].row + self._template.close):
                rows[-1].append(turn)
            else:
                rows.append([turn])
        first = 0
        segments = []
        for row in rows:
            segments.append(self._segment(row, first))
            first += len(row)
        return tuple(segments)

    def bridge(
        self, ids: Sequence[int], reply: Sequence[Message], tools: Tools | None = None
    ) -> tuple[int, ...] | None:
        """Return ``ids`` (a prompt and what was sampled) extended by the reply and the next generation prompt.

        ``ids`` stay as they are; a turn that was cut off is closed first. None if it cannot be proved that the
        template would write the same: the caller then begins a new segment with `prompt_ids`.
        """
        row = tuple(int(token) for token in ids)
        if not row or not reply or (row[-1] in self.stop_ids and row[-1] != self.end_of_turn_id):
            return None
        thinking = "</think>" in self.decode(row, skip_special=False)
        scaffold = self._template.scaffold(reply, tools, thinking=thinking)
        if scaffold is None:
            return None
        closed = row if row[-1] == self.end_of_turn_id else (*row, self.end_of_turn_id)
        return closed + self._continue(self._template.close, (self.end_of_turn_id,), scaffold)

    def witness(self) -> Witness:
        """Return whether the template keeps the prefix over a tool turn and over a user turn, tried on dummies."""
        reply = [{"role": "tool", "content": "ibex 9", "name": "lookup", "tool_call_id": "abcdefgh1"}]
        tool = self._template.keeps(reply) if self._template.takes(reply) else None
        user = self._template.keeps([{"role": "user", "content": "ibex 9"}])
        return Witness(keeps_over_tool=tool, keeps_over_user=user, detail=self._detail(tool, user))

    def _turns(self, messages: Sequence[Message], tools: Tools | None) -> list[Turn]:
        roles = [message.get("role") for message in messages]
        if not roles or roles[-1] != "assistant" or roles[0] == "assistant":
            raise DataError(
                f"a demonstration begins with a prompt and ends with an assistant message; got roles {roles}"
            )
        return [self._template.turn(messages, i, tools) for i, role in enumerate(roles) if role == "assistant"]

    def _segment(self, turns: Sequence[Turn], first: int = 0) -> Segment:
        """Lay out turns of which each prompt continues the row before it."""
        ids = list(self._encode(turns[0].prompt))
        prompt_length = len(ids)
        numbers = [-1] * prompt_length
        anchor, anchor_ids = turns[0].prompt, tuple(ids)
        for number, turn in enumerate(turns):
            if number:
                close, closed = self._template.close, turns[number - 1].row + self._template.close
                scaffold = turn.prompt[len(closed) :]
                added = self._continue(close, (self.end_of_turn_id,), scaffold)
                anchor, anchor_ids = close + scaffold, (self.end_of_turn_id, *added)
                ids += added
                numbers += [-1] * len(added)
            content = self._content(turn, anchor, anchor_ids)
            ids += content
            numbers += [first + number] * len(content)
        return Segment(
            ids=tuple(ids),
            loss_mask=tuple(number >= 0 for number in numbers),
            rollout_logprobs=(nan,) * len(ids),
            versions=(-1,) * len(ids),
            turns=tuple(numbers),
            prompt_length=prompt_length,
        )

    def _content(self, turn: Turn, anchor: str, anchor_ids: tuple[int, ...]) -> tuple[int, ...]:
        """Return the ids the model is to write in a turn, the closing token last."""
        ids = self._continue(anchor, anchor_ids, turn.text)
        early = self.stop_ids.intersection(ids)
        if early:
            token = self.decode([min(early)], skip_special=False)
            raise DataError(
                f"message {turn.index} (assistant) holds {token!r}, which would end the turn before its end"
            )
        return (*ids, self.end_of_turn_id)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False, verbose=False)) if text else ()

    def _continue(self, anchor: str, anchor_ids: tuple[int, ...], text: str) -> tuple[int, ...]:
        """Return ids of ``text`` after ids that stay fixed.

        Tokenising both together shows how the text looks in its place (no prefix space, blanks that a special
        token swallows); where that would merge a token across the boundary, the text is tokenised by itself.
        """
        together = self._encode(anchor + text)
        if together[: len(anchor_ids)] == anchor_ids:
            return together[len(anchor_ids) :]
        return self._encode(text)

    def _detail(self, tool: bool | None, user: bool) -> str:
        words = {
            True: "kept",
            False: "rewritten, so each turn becomes a segment of its own",
            None: "not in the template",
        }
        parts = [f"over a tool's reply: {words[tool]}", f"over a user's message: {words[user]}"]
        if not self._template.close:
            parts.append("the template closes no turn with a token, so eos_token ends it and turns are never joined")
        if "strftime_now" in self._template.text():
            parts.append("the template may write today's date into prompts, so another day gives other prompts")
        return "; ".join(parts)

    def _hash(self) -> str:
        special = {name: str(token) for name, token in self.tokenizer.special_tokens_map.items()}
        return sha256(json.dumps([self._template.text(), special], sort_keys=True).encode()).hexdigest()
