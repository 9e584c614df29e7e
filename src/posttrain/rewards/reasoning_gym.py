"""The verdict of reasoning_gym's own verifier on the answer in the tag: 1 if it calls it fully right, else 0.

Its raw score pays part of a point for an answer that merely contains the right one, so by default only a full
score counts. Some verifiers run the model's text as Python code. Four do so plainly (``eval``) and are refused;
five do so through sympy's ``parse_expr`` and are called only for text that is plain arithmetic of known names.
Verifiers run in a process with a deadline.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from posttrain.config import Settings
from posttrain.errors import ConfigError, did_you_mean
from posttrain.processes import KillingPool
from posttrain.reading import read_place
from posttrain.types import Outcome, Rollout, Score, Task

__all__ = ["Config", "ReasoningGym"]

EVALUATES_TEXT = frozenset({"string_insertion", "spiral_matrix", "binary_matrix", "n_queens"})
"""Tasks whose verifier calls ``eval`` on the model's text."""
PARSES_TEXT = frozenset(
    {"countdown", "puzzle24", "simple_integration", "intermediate_integration", "polynomial_multiplication"}
)
"""Tasks whose verifier calls sympy's ``parse_expr``, which evaluates Python, on the model's text."""
_NAMES = frozenset({"sin", "cos", "tan", "exp", "log", "ln", "sqrt", "asin", "acos", "atan", "sinh", "cosh", "pi"})
_SIGNS = re.compile(r"[A-Za-z0-9+\-*/^() .,]*")
_ATTRIBUTE = re.compile(r"\.\s*[A-Za-z]|[A-Za-z)]\s*\.")
_POWER = r"(?:\*\*|\^)"
_EXPONENT = r"(?:-?\d{1,2}|\(\s*-?\d{1,2}\s*(?:/\s*\d{1,2}\s*)?\))(?![\d.])"
_TOWER = re.compile(rf"{_POWER}(?!\s*{_EXPONENT}(?!\s*{_POWER}))|(?:\)\s*{_POWER}.*){{3}}")
_MAX_CHARACTERS = 500


class Config(Settings):
    """Which task, and when its verifier's score counts."""

    task: str | None = None
    """Name of the reasoning_gym task; read from the task's metadata if not given."""
    tag: str | None = "answer"
    """Tag around the answer; none means that the whole completion is the answer."""
    threshold: float = Field(1.0, ge=0, le=1)
    """Score from which an answer is right; 0 keeps the verifier's raw score."""
    timeout_seconds: float = Field(10.0, gt=0, allow_inf_nan=False)
    """Deadline for one answer."""


class ReasoningGym:
    """Scores with reasoning_gym's verifiers; see the module."""

    def __init__(self, config: Config, name: str = "reasoning_gym") -> None:
        self.config = config
        self.name = name
        try:
            import reasoning_gym.factory as factory  # noqa: PLC0415
        except ImportError as error:
            raise ConfigError("reward 'reasoning_gym' needs the extra: pip install 'posttrain[tasks]'") from error
        self._known = frozenset(factory.DATASETS)
        if config.task is not None:
            self._check_name(config.task)
        self._pool = KillingPool(_Verifier(factory.get_score_answer_fn), workers=2)

    async def score(self, rollouts: Sequence[Rollout], task: Task) -> list[Score]:
        """Return one score per rollout; raise ConfigError for a task whose verifier would run the answer."""
        metadata = task.columns.get("metadata") or {}
        name = self.config.task or metadata.get("source_dataset")
        if name is None:
            raise ConfigError(
                f"task {task.id!r} does not say which reasoning_gym task it is: no metadata.source_dataset column. "
                'Set task = "…" on the reward.'
            )
        self._check_name(name)
        question = task.columns.get("question") or task.messages[-1].get("content", "")
        entry = {"question": question, "answer": task.answer, "metadata": dict(metadata)}
        return list(await asyncio.gather(*(self._one(name, rollout.text, entry) for rollout in rollouts)))

    def _check_name(self, name: str) -> None:
        if name not in self._known:
            raise ConfigError(f"reasoning_gym has no task '{name}'.{did_you_mean(name, self._known)}")
        if name in EVALUATES_TEXT:
            raise ConfigError(
                f"reasoning_gym's verifier of '{name}' runs the model's answer as Python code (eval), "
                "so a completion could do anything to this machine. Choose another task, or score it with "
                "reward 'exact'."
            )

    async def _one(self, name: str, text: str, entry: dict[str, Any]) -> Score:
        answer = text if self.config.tag is None else read_place(text, "tag", self.config.tag)
        if answer is None:
            return self._score(Outcome.UNPARSABLE, None, f"no <{self.config.tag}> in the completion")
        if name in PARSES_TEXT and not is_arithmetic(answer):
            return self._score(Outcome.UNPARSABLE, None, "not plain arithmetic, so it was not evaluated")
        reply = await self._pool.call((name, answer, entry), seconds=self.config.timeout_seconds)
        if reply.status == "done":
            value = reply.value if self.config.threshold == 0 else float(reply.value >= self.config.threshold)
            return self._score(Outcome.SCORED, value, f"verifier gave {reply.value:g}")
        outcome = Outcome.TIMEOUT if reply.status == "timeout" else Outcome.FAILED
        return self._score(outcome, None, f"verifier of '{name}': {reply.detail}")

    def _score(self, outcome: Outcome, value: float | None, detail: str) -> Score:
        return Score(name=self.name, value=value, outcome=outcome, detail=detail)


def is_arithmetic(text: str) -> bool:
    """True if the text is numbers, operators, brackets, single letters and known functions, with small powers only.

    No quotes, underscores or attribute dots are left, so nothing that Python could import or call can be named.
    """
    if len(text) > _MAX_CHARACTERS or not _SIGNS.fullmatch(text):
        return False
    if _ATTRIBUTE.search(text) or _TOWER.search(text):
        return False
    return all(len(word) == 1 or word in _NAMES for word in re.findall(r"[A-Za-z]+", text))


class _Verifier:
    """Keeps one verifier per task name; runs in the child."""

    def __init__(self, find: Any) -> None:
        self._find = find
        self._verifiers: dict[str, Any] = {}

    def __call__(self, argument: tuple[str, str, dict[str, Any]]) -> float:
        name, answer, entry = argument
        if name not in self._verifiers:
            self._verifiers[name] = self._find(name)
        return float(self._verifiers[name](answer, entry))
