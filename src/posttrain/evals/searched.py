"""What a search at test time found and what it cost: numbers with intervals, tokens, judge calls, protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from posttrain.errors import RewardError
from posttrain.evals.fingerprint import Fingerprint
from posttrain.functional.intervals import Interval, prompt_interval
from posttrain.records.json_lines import to_plain


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """The compute of a search; what measures it (the verifier of the answer) is not part of it."""

    tokens: int = 0
    """Tokens sampled, dropped beams and samples included."""
    completions: int = 0
    """Calls of the engine."""
    verdicts: int = 0
    """Texts that the judge scored."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            tokens=self.tokens + other.tokens,
            completions=self.completions + other.completions,
            verdicts=self.verdicts + other.verdicts,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptSearch:
    """One task."""

    id: str
    """The task's id."""
    numbers: Mapping[str, float]
    """Share or expectation of being right by way of choosing; a way that could not choose is missing."""
    cost: Cost
    """What this task took."""
    failed: int = 0
    """Samples or beams without a verdict; they were never chosen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Searched:
    """One search with one set of weights."""

    method: str
    """best_of_n or step_search."""
    numbers: Mapping[str, Interval]
    """Share of tasks answered right, by way of choosing."""
    cost: Cost
    """Over all tasks."""
    prompts: tuple[PromptSearch, ...]
    """Every task, in order."""
    fingerprint: Fingerprint
    """The protocol, judge and search settings included in its verifier."""
    settings: Mapping[str, Any]
    """How it searched, for people."""
    label: str = ""
    """What was measured, for people."""
    warnings: tuple[str, ...] = field(default=())
    """What a reader of the numbers must know."""

    def to_json(self) -> dict[str, Any]:
        """The result as JSON can hold it."""
        row = to_plain(asdict(self))
        return dict(row | {"fingerprint": self.fingerprint.to_json(), "digest": self.fingerprint.digest})

    def cost_line(self) -> str:
        """The compute in words, in all and per task."""
        count = max(len(self.prompts), 1)
        parts = [(self.cost.tokens, "tokens"), (self.cost.completions, "completions"), (self.cost.verdicts, "verdicts")]
        return ", ".join(f"{number:,} {name} ({number / count:,.1f} per task)" for number, name in parts)


def summarise_search(
    prompts: Sequence[PromptSearch],
    *,
    method: str,
    fingerprint: Fingerprint,
    settings: Mapping[str, Any],
    label: str = "",
    warnings: Sequence[str] = (),
) -> Searched:
    """Numbers over tasks with 95 % intervals; a way of choosing counts over the tasks where it could choose.

    Raises RewardError if nothing could be chosen anywhere.
    """
    names = list(dict.fromkeys(name for prompt in prompts for name in prompt.numbers))
    if not names:
        raise RewardError(f"{method}: no task has a judged answer, so there is nothing to report")
    lines = list(warnings)
    numbers = {}
    for name in names:
        values = [prompt.numbers[name] for prompt in prompts if name in prompt.numbers]
        numbers[name] = prompt_interval(values)
        if len(values) < len(prompts):
            lines.append(f"{name} leaves out {len(prompts) - len(values)} of {len(prompts)} tasks, which lack verdicts")
    failed = sum(prompt.failed for prompt in prompts)
    if failed:
        lines.append(f"{failed} samples have no verdict; they were never chosen")
    return Searched(
        method=method,
        numbers=numbers,
        cost=sum((prompt.cost for prompt in prompts), Cost()),
        prompts=tuple(prompts),
        fingerprint=fingerprint,
        settings=dict(settings),
        label=label,
        warnings=tuple(lines),
    )
