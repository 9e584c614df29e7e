"""Rows with better and worse answers become tasks with candidates, and these become groups with rewards.

preferences   a prompt, a chosen answer (reward 1) and a rejected one or several (reward 0)
rankings      a prompt and answers, best first (reward: how many are worse), or with a score each; ties are kept
labels        a prompt, one answer and whether it is good (reward 1 or 0); a preference row gives two such answers

An answer is text, the messages that follow the prompt, or the whole conversation. Where there is no prompt column,
chosen and rejected must be conversations, and what they share is the prompt (TRL's implicit form). Only the
assistant messages after the prompt train.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from posttrain.errors import DataError
from posttrain.tasks.chat import Chat
from posttrain.tasks.columns import Columns, read_messages
from posttrain.tasks.taskset import TaskSet
from posttrain.types import Candidate, Ending, Group, Message, Rollout, Task

Kind = Literal["preferences", "rankings", "labels"]
KINDS: tuple[Kind, ...] = ("preferences", "rankings", "labels")
"""What ``Needs.data`` may ask for here."""
USUAL = ("prompt", "question", "messages")
"""Names a prompt column has if the recipe names none."""
IMAGES = "images"
"""Column that may hold what the model's processor made of a prompt's images, by the model's argument name
(pixel_values, ...); the prompt then has the placeholder tokens written out."""
SAME = "chosen equal to rejected"
"""Why a task is left out: it holds no comparison, and its loss would be a constant."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreferenceColumns:
    """Reads one row of preference data; has the ``task`` method of `Columns`."""

    kind: Kind
    """What a row holds."""
    columns: Columns = field(default_factory=Columns)
    """Where the prompt is."""
    chosen: str = "chosen"
    """Column with the better answer."""
    rejected: str = "rejected"
    """Column with the worse answer, or several."""
    ranking: str = "ranking"
    """Column with answers, best first."""
    scores: str = "scores"
    """Column with a score for each answer of the ranking."""
    completion: str = "completion"
    """Column with one answer."""
    label: str = "label"
    """Column that calls it good or bad."""

    def task(self, row: Any, place: str, *, identity: str, source: str, for_imitation: bool = False) -> Task:
        """Build one task with candidates, best first; DataError says what is wrong where."""
        if not isinstance(row, Mapping):
            raise DataError(f"{place}: expected columns by name; got {type(row).__name__}")
        answers = self._answers(row, place)
        prompt, used = self._prompt(row, place, [answer for answer, _ in answers])
        candidates = [
            Candidate(messages=_after(prompt, answer, f"{place}, an answer"), reward=reward)
            for answer, reward in answers
        ]
        used |= {self.chosen, self.rejected, self.ranking, self.scores, self.completion, self.label, "id"}
        found = row.get("id")
        return Task(
            id=identity if found is None else str(found),
            messages=prompt,
            columns={name: value for name, value in row.items() if name not in used},
            source=source,
            candidates=tuple(sorted(candidates, key=lambda candidate: -candidate.reward)),
        )

    def _answers(self, row: Mapping[str, Any], place: str) -> list[tuple[tuple[Message, ...], float]]:
        """Every answer as messages, with its reward."""
        if self.kind == "rankings" and row.get(self.ranking) is not None:
            return self._ranked(row, place)
        if self.kind == "labels" and row.get(self.label) is not None:
            return [(self._answer(row, self.completion, place), self._label(row, place))]
        if row.get(self.chosen) is None or row.get(self.rejected) is None:
            raise DataError(f"{place}: {self._wanted()}; the row has: {', '.join(map(str, row)) or 'nothing'}")
        worse = _several(row[self.rejected], f"{place}, column '{self.rejected}'")
        return [(self._answer(row, self.chosen, place), 1.0), *((answer, 0.0) for answer in worse)]

    def _ranked(self, row: Mapping[str, Any], place: str) -> list[tuple[tuple[Message, ...], float]]:
        answers = _several(row[self.ranking], f"{place}, column '{self.ranking}'")
        scores = row.get(self.scores)
        if scores is None:
            scores = range(len(answers) - 1, -1, -1)
        wrong = isinstance(scores, str) or not isinstance(scores, Sequence) or len(scores) != len(answers)
        if wrong or not all(_is_number(score) for score in scores):
            raise DataError(
                f"{place}, column '{self.scores}': expected one number for each of the {len(answers)} answers, got "
                f"{scores!r}"
            )
        return [(answer, float(score)) for answer, score in zip(answers, scores, strict=True)]

    def _answer(self, row: Mapping[str, Any], column: str, place: str) -> tuple[Message, ...]:
        if row.get(column) is None:
            raise DataError(f"{place}: no column '{column}'; {self._wanted()}")
        return _as_answer(row[column], f"{place}, column '{column}'")

    def _label(self, row: Mapping[str, Any], place: str) -> float:
        value = row[self.label]
        if value not in (0, 1, True, False):
            raise DataError(f"{place}, column '{self.label}': expected true or false, got {value!r}")
        return float(value)

    def _prompt(
        self, row: Mapping[str, Any], place: str, answers: Sequence[tuple[Message, ...]]
    ) -> tuple[tuple[Message, ...], set[str]]:
        """The prompt and the columns it was read from: those that the recipe names, else TRL's, else ours."""
        own = [name for name in (self.columns.messages, self.columns.question) if name not in USUAL]
        reader = replace(self.columns, question="question", answer="answer", answer_pattern=None)
        for name in (*own, *USUAL):
            if row.get(name) is not None:
                question = {"question": row[name]}
                return reader.task(question, place, identity="", source="", for_imitation=False).messages, {name}
        shared = _shared(answers)
        if not shared:
            raise DataError(
                f"{place}: no prompt in '{self.columns.messages}', '{self.columns.question}' or 'prompt', and the "
                "answers are not conversations that begin alike. Name the column with tasks.question or tasks.messages."
            )
        return shared, set()

    def _wanted(self) -> str:
        pair = f"columns '{self.chosen}' and '{self.rejected}' (tasks.chosen, tasks.rejected)"
        more = {
            "preferences": "",
            "rankings": f", or '{self.ranking}' (tasks.ranking)",
            "labels": f", or '{self.completion}' and '{self.label}' (tasks.completion, tasks.label)",
        }
        return f"{self.kind} need {pair}{more[self.kind]}"


def without_equal(tasks: TaskSet, kind: str) -> TaskSet:
    """Leave out tasks none of whose answers is better than another, or whose better and worse answers are the same."""
    if kind not in ("preferences", "rankings"):
        return tasks
    kept = tuple(task for task in tasks if _compares(task))
    if len(kept) == len(tasks):
        return tasks
    return replace(tasks, tasks=kept, skipped={**tasks.skipped, SAME: len(tasks) - len(kept)})


def with_wrong_answers(rows: Iterable[Mapping[str, Any]], kind: str) -> Iterator[dict[str, Any]]:
    """Give a generator's problems a wrong answer: the right one of another problem; labels alternate.

    ``rows`` have a question and an answer. Raises DataError where all answers are the same.
    """
    problems = list(rows)
    for number, row in enumerate(problems):
        others = (problems[(number + k) % len(problems)]["answer"] for k in range(1, len(problems)))
        wrong = next((other for other in others if other != row["answer"]), None)
        if wrong is None:
            raise DataError("the generator's problems all have one answer, so there is no wrong one to set against it")
        if kind == "labels":
            yield {**row, "completion": wrong if number % 2 else row["answer"], "label": number % 2 == 0}
        else:
            yield {**row, "chosen": row["answer"], "rejected": wrong}


def candidate_group(task: Task, position: int, chat: Chat) -> Group:
    """The task's answers as a group of rollouts with rewards, in order; its images go with every row."""
    start = len(task.messages)
    images = task.columns.get(IMAGES)
    seen: Mapping[str, Any] = images if isinstance(images, Mapping) else {}
    rollouts = tuple(
        Rollout(
            task=task,
            index=index,
            seed=0,
            segments=tuple(
                replace(segment, images=seen)
                for segment in chat.demonstration_segments((*task.messages, *candidate.messages), after=start)
            ),
            messages=(*task.messages, *candidate.messages),
            text=str(candidate.messages[-1]["content"]),
            ending=Ending.STOP,
            reward=candidate.reward,
        )
        for index, candidate in enumerate(task.candidates)
    )
    return Group(position=position, task=task, rollouts=rollouts)


def _compares(task: Task) -> bool:
    best = task.candidates[0]
    return any(
        other.reward < best.reward and list(other.messages) != list(best.messages) for other in task.candidates[1:]
    )


def _several(value: Any, place: str) -> list[tuple[Message, ...]]:
    """One answer, or a list of answers, as a list."""
    many = isinstance(value, Sequence) and not isinstance(value, str) and not (value and isinstance(value[0], Mapping))
    if many and not value:
        raise DataError(f"{place}: expected at least one answer; got an empty list")
    return [_as_answer(item, place) for item in value] if many else [_as_answer(value, place)]


def _as_answer(value: Any, place: str) -> tuple[Message, ...]:
    if isinstance(value, str):
        if not value.strip():
            raise DataError(f"{place}: expected an answer; got an empty text")
        return ({"role": "assistant", "content": value},)
    messages = read_messages(value, place)
    if messages[-1]["role"] != "assistant":
        raise DataError(f"{place}: expected messages that end with the assistant's; got role {messages[-1]['role']!r}")
    return messages


def _after(prompt: tuple[Message, ...], answer: tuple[Message, ...], place: str) -> tuple[Message, ...]:
    """The answer without the prompt in front of it, if it repeats it; a system message may have been added to that."""
    for repeated in (prompt, prompt[1:] if prompt[0]["role"] == "system" else prompt):
        if repeated and list(answer[: len(repeated)]) == list(repeated):
            answer = answer[len(repeated) :]
            break
    if not answer:
        raise DataError(f"{place}: it only repeats the prompt")
    return answer


def _shared(answers: Sequence[tuple[Message, ...]]) -> tuple[Message, ...]:
    """The messages that all conversations begin with, up to the last that is not the assistant's."""
    length = 0
    for together in zip(*answers, strict=False):
        if any(message != together[0] for message in together):
            break
        length += 1
    shared = answers[0][: min(length, min(map(len, answers)) - 1)]
    while shared and shared[-1]["role"] == "assistant":
        shared = shared[:-1]
    return shared


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
