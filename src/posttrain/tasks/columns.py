"""Turn a source's rows into tasks: which column is the question, which the answer, which the text to imitate."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.errors import ConfigError, DataError, did_you_mean
from posttrain.types import Message, Task

ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython")
"""Roles a message may have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """Names of the columns that matter; the others are handed on."""

    messages: str = "messages"
    """Chat messages; used in rows that have it."""
    question: str = "question"
    """Text of the question, or chat messages; used in rows without messages."""
    answer: str = "answer"
    """Reference answer."""
    answer_pattern: str | None = None
    """Regular expression whose first group is the answer inside the answer column."""
    demonstration: str | None = None
    """Text to imitate; the answer column if not given."""
    system: str | None = None
    """System message put before every conversation that has none of its own."""

    def __post_init__(self) -> None:
        if self.answer_pattern is None:
            return
        try:
            groups = re.compile(self.answer_pattern).groups
        except re.error as error:
            raise ConfigError(
                f"tasks.answer_pattern {self.answer_pattern!r} is no regular expression: {error}"
            ) from error
        if groups < 1:
            raise ConfigError(
                f"tasks.answer_pattern {self.answer_pattern!r} needs a group in parentheses that holds the answer, "
                r"for example '####\s*(\S+)'"
            )

    def task(self, row: Any, place: str, *, identity: str, source: str, for_imitation: bool) -> Task:
        """Build one task; ``row`` is a mapping of columns, or a plain question. DataError says what is wrong where."""
        if isinstance(row, str):
            row = {self.question: row}
        if not isinstance(row, Mapping):
            raise DataError(f"{place}: expected columns by name, or a question; got {type(row).__name__}")
        messages, prompt_column = self._messages(row, place)
        used = {"id", prompt_column, self.answer}
        answer = self._answer(row, place)
        if for_imitation and messages[-1]["role"] != "assistant":
            messages = (*messages, {"role": "assistant", "content": self._demonstration(row, place)})
            used.add(self.demonstration or self.answer)
        elif not for_imitation and messages[-1]["role"] == "assistant":
            raise DataError(
                f"{place}: the messages end with an assistant message, so there is nothing left to answer. Train it "
                "as a demonstration (algorithm sft), or remove the last message."
            )
        columns = {name: value for name, value in row.items() if name not in used}
        found = row.get("id")
        return Task(
            id=identity if found is None else str(found),
            messages=messages,
            answer=answer,
            columns=columns,
            source=source,
        )

    def _messages(self, row: Mapping[str, Any], place: str) -> tuple[tuple[Message, ...], str]:
        """Return the conversation and the column it came from."""
        column = self.messages if row.get(self.messages) is not None else self.question
        value = row.get(column)
        if value is None:
            raise _missing(row, place, [self.messages, self.question], "tasks.messages or tasks.question")
        if isinstance(value, str) and column == self.question:
            if not value.strip():
                raise DataError(f"{place}: column '{column}' is empty; expected a question")
            messages: tuple[Message, ...] = ({"role": "user", "content": value},)
        else:
            messages = read_messages(value, f"{place}, column '{column}'")
        if self.system is not None and messages[0]["role"] not in ("system", "developer"):
            messages = ({"role": "system", "content": self.system}, *messages)
        return messages, column

    def _answer(self, row: Mapping[str, Any], place: str) -> str | None:
        """Return the reference answer as text; None where there is none and none was asked for."""
        if self.answer not in row and (self.answer != "answer" or self.answer_pattern is not None):
            raise _missing(row, place, [self.answer], "tasks.answer")
        value = row.get(self.answer)
        if value is None:
            return None
        text = _as_text(value)
        if self.answer_pattern is None:
            return text
        match = re.search(self.answer_pattern, text)
        if match is None or match.group(1) is None:
            raise DataError(
                f"{place}: column '{self.answer}' has nothing that matches tasks.answer_pattern "
                f"{self.answer_pattern!r}; it ends with {text[-60:]!r}"
            )
        return match.group(1)

    def _demonstration(self, row: Mapping[str, Any], place: str) -> str:
        column = self.demonstration or self.answer
        value = row.get(column)
        if value is None:
            raise _missing(row, place, [column], "tasks.demonstration")
        text = _as_text(value)
        if not text.strip():
            raise DataError(f"{place}: column '{column}' is empty; expected the text to imitate")
        return text


def read_messages(value: Any, place: str) -> tuple[Message, ...]:
    """Check chat messages and drop keys without a value (Parquet fills them in); DataError names the message."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise DataError(f"{place}: expected a list of messages with role and content; got {type(value).__name__}")
    if not value:
        raise DataError(f"{place}: expected at least one message; got an empty list")
    return tuple(_read_message(item, f"{place}, message {number}") for number, item in enumerate(value))


def _read_message(item: Any, place: str) -> Message:
    if not isinstance(item, Mapping):
        raise DataError(f"{place}: expected an object with role and content; got {type(item).__name__}")
    message = {str(key): value for key, value in item.items() if value is not None}
    role = message.get("role")
    if role is None:
        raise DataError(f"{place}: expected the keys role and content; got {', '.join(sorted(message)) or 'none'}")
    if role not in ROLES:
        raise DataError(f"{place}: unknown role {role!r}.{did_you_mean(str(role), ROLES)}")
    if not isinstance(message.get("content"), str | list) and not message.get("tool_calls"):
        raise DataError(f"{place} ({role}): expected content as text or parts; got {message.get('content')!r}")
    message.setdefault("content", "")
    return message


def _as_text(value: Any) -> str:
    """Text as it is, numbers as Python writes them, anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


def _missing(row: Mapping[str, Any], place: str, columns: list[str], option: str) -> DataError:
    present = [str(name) for name, value in row.items() if value is not None]
    wanted = " or ".join(f"'{column}'" for column in columns)
    hint = did_you_mean(columns[-1], present)
    near = hint if "Did you mean" in hint else ""
    return DataError(
        f"{place}: no column {wanted}; the row has: {', '.join(present) or 'nothing'}.{near} "
        f"Name the column with {option}."
    )
