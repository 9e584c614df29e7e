"""What a chat template writes, as text: prompts, where a turn of the assistant begins and ends, what follows it.

Nothing here relies on ``{% generation %}`` marks. The end of a turn is found by rendering a conversation with a
known answer; what stands between a turn and the next prompt is found by differencing two conversations. A turn
counts as kept only if the longer conversation repeats the generation prompt, what was sampled and the closing
token letter by letter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from posttrain.errors import ModelError
from posttrain.types import Message

Tools = Sequence[Mapping[str, Any]]
"""Tool descriptions as JSON schemas."""

PROBE = "zebra 7"
QUESTION: Message = {"role": "user", "content": "giraffe 5"}
SYSTEM: Message = {"role": "system", "content": "okapi 3"}
THOUGHT = "<think>\nheron 2\n</think>\n\n"
CALL = {"id": "abcdefgh1", "type": "function", "function": {"name": "lookup", "arguments": {"word": "ibis"}}}


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One assistant message as text, in the conversation that ends with it."""

    prompt: str
    """Everything before it, as the model sees it when it is to answer."""
    text: str
    """What the model is to write, without the closing token."""
    index: int
    """Place of the message in the conversation."""

    @property
    def row(self) -> str:
        """Prompt and text."""
        return self.prompt + self.text


class Template:
    """A tokenizer's chat template, or another one, and how its turns end."""

    def __init__(self, tokenizer: Any, *, template: str | None = None) -> None:
        """``template`` is jinja text or the path of a file that holds it; raises ModelError if there is none."""
        self._tokenizer = tokenizer
        self._override = _read(template) if template is not None else None
        if self._override is None and not getattr(tokenizer, "chat_template", None):
            raise ModelError(
                "the tokenizer has no chat template, so messages cannot become a prompt. Give one with "
                'model.chat_template="file.jinja", or use an instruction-tuned model.'
            )
        self._opening = ""
        self.close, self._after = self._find_close()
        self._opening = self._find_opening()

    def text(self, tools: Tools | None = None) -> str:
        """Return the jinja text."""
        return str(self._tokenizer.get_chat_template(self._override, tools=tools))

    def render(self, messages: Sequence[Message], tools: Tools | None = None, *, prompt: bool = False) -> str:
        """Return the conversation as text; with ``prompt``, up to where the assistant is to write.

        Raises ModelError if the template refuses the conversation or silently leaves a message out.
        """
        if not messages:
            raise ModelError("a conversation needs at least one message before the assistant's")
        try:
            text: str = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=[dict(tool) for tool in tools] if tools else None,
                chat_template=self._override,
                add_generation_prompt=prompt,
                tokenize=False,
            )
        except (jinja2.TemplateError, TypeError, KeyError, ValueError) as error:
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise ModelError(f"the chat template cannot render a conversation of roles [{roles}]: {error}") from error
        _refuse_lost_messages(messages, text)
        return text + self._opening if prompt else text

    def turn(self, messages: Sequence[Message], index: int, tools: Tools | None = None) -> Turn:
        """Return the assistant message at ``index`` as what the model writes after its prompt.

        Raises ModelError if the template does not render it as a continuation of its own generation prompt.
        """
        prompt = self.render(messages[:index], tools, prompt=True)
        row = self._cut(self.render(messages[: index + 1], tools))
        if not row.startswith(prompt):
            there = row[max(0, _common(prompt, row) - 20) :][:60]
            raise ModelError(
                f"the chat template writes message {index} (assistant) otherwise than as an answer to messages "
                f"0 to {index - 1}: the prompt ends with {prompt[-40:]!r}, the conversation has {there!r} there. "
                "Training it would not train what is sampled; change the template, or write the message as the model "
                "would (for example with its thinking)."
            )
        text = row[len(prompt) :]
        content = messages[index].get("content")
        if isinstance(content, str) and content.strip() and not text.strip():
            raise ModelError(f"the chat template leaves out the text of message {index} (assistant)")
        return Turn(prompt=prompt, text=text, index=index)

    def scaffold(self, reply: Sequence[Message], tools: Tools | None = None, *, thinking: bool) -> str | None:
        """Return what follows a closed turn when ``reply`` comes and the assistant is to write again.

        None if the template would rewrite the turn, or what came before it, or cannot render the reply.
        ``thinking`` says whether earlier turns hold a closed thought.
        """
        if not self.close:
            return None
        answer = {"role": "assistant", "content": (THOUGHT if thinking else "") + PROBE}
        try:
            return self._after_answer(answer, reply, tools)
        except ModelError:
            if not any(message.get("role") == "tool" for message in reply):
                return None
        try:
            return self._after_call({**answer, "tool_calls": [CALL]}, reply, tools)
        except ModelError:
            return None

    def keeps(self, reply: Sequence[Message]) -> bool:
        """Return whether a turn stays as it was sampled when ``reply`` follows, with and without a thought in it."""
        always = self.render([QUESTION], prompt=True).rstrip().endswith("<think>")
        return all(
            self.scaffold(reply, thinking=thinking) is not None for thinking in ({True} if always else {False, True})
        )

    def takes(self, reply: Sequence[Message]) -> bool:
        """Return whether the template can render ``reply`` after an assistant message, with a tool call or without."""
        for extra in ({}, {"tool_calls": [CALL]}):
            try:
                self.render([QUESTION, {"role": "assistant", "content": PROBE, **extra}, *reply])
            except ModelError:
                continue
            return True
        return False

    def _after_answer(self, answer: Message, reply: Sequence[Message], tools: Tools | None) -> str | None:
        """Difference letter by letter: prompt, what was sampled, closing token, then the scaffold."""
        opening = self._dummy_opening()
        prompt = self.render(opening, tools, prompt=True)
        content = answer["content"]
        sampled = content.removeprefix("<think>\n") if prompt.rstrip().endswith("<think>") else content
        longer = self.render([*opening, answer, *reply], tools, prompt=True)
        written = longer.removeprefix(prompt).lstrip()
        if not longer.startswith(prompt) or not written.startswith(sampled):
            return None
        rest = written[len(sampled) :].lstrip()
        return rest[len(self.close) :] if rest.startswith(self.close) else None

    def _after_call(self, answer: Message, reply: Sequence[Message], tools: Tools | None) -> str | None:
        """Difference two conversations, for templates that want a tool call before a tool's reply."""
        before = [*self._dummy_opening(), answer]
        row = self._cut(self.render(before, tools)) + self.close
        longer = self.render([*before, *reply], tools, prompt=True)
        return longer[len(row) :] if longer.startswith(row) else None

    def _dummy_opening(self) -> list[Message]:
        """A first question, with a system message where the template takes one: some templates move it later."""
        try:
            self.render([SYSTEM, QUESTION])
        except ModelError:
            return [QUESTION]
        return [SYSTEM, QUESTION]

    def _cut(self, row: str) -> str:
        """Drop the closing token and what follows it from a conversation that ends with an assistant message."""
        if not self.close:
            return row.removesuffix(self._after)
        end = row.removesuffix(self._after)
        if end.endswith(self.close):
            return end[: -len(self.close)]
        raise ModelError(f"the chat template does not end this assistant message with {self.close!r}: {row[-60:]!r}")

    def _find_close(self) -> tuple[str, str]:
        """Return (token text that ends a turn, what follows it at the end); ('', tail) if no token ends it."""
        rendered = self.render([QUESTION, {"role": "assistant", "content": PROBE}])
        _, found, tail = rendered.rpartition(PROBE)
        if not found:
            raise ModelError("the chat template does not render the text of an assistant message")
        tokens = {str(token) for token in self._tokenizer.added_tokens_decoder.values()}
        tokens |= {str(token) for token in self._tokenizer.all_special_tokens}
        start = tail.lstrip()
        closing = [token for token in tokens if token.strip() and start.startswith(token)]
        if not closing:
            return "", tail
        close = max(closing, key=len)
        return close, start[len(close) :]

    def _find_opening(self) -> str:
        """Return the role header that we must write ourselves where a template ignores add_generation_prompt."""
        plain, prompt = self.render([QUESTION]), self.render([QUESTION], prompt=True)
        answered = self.render([QUESTION, {"role": "assistant", "content": PROBE}])
        if plain != prompt or not answered.startswith(plain):
            return ""
        header = answered[len(plain) :].partition(PROBE)[0]
        return header if header.strip() else ""


def _read(template: str) -> str:
    """Return jinja text as it is; a text without braces can only be the path of a file."""
    if "{" in template:
        return template
    file = Path(template)
    if not file.is_file():
        raise ModelError(f"chat template file {template} does not exist. Give the path of a jinja file.")
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"chat template file {template} is not UTF-8 text: {error}") from error


def _refuse_lost_messages(messages: Sequence[Message], text: str) -> None:
    """Raise if a system, tool or other environment message is not in the text: the model would never see it."""
    for number, message in enumerate(messages):
        content = message.get("content")
        if message.get("role") in ("user", "assistant") or not isinstance(content, str):
            continue
        if content.strip() not in text and json.dumps(content.strip(), ensure_ascii=False)[1:-1] not in text:
            raise ModelError(
                f"the chat template leaves out message {number} (role {message.get('role')!r}). Remove the message, "
                'or give a template that has that role with model.chat_template="file.jinja".'
            )


def _common(left: str, right: str) -> int:
    """Return the length of the common beginning."""
    for number, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return number
    return min(len(left), len(right))
