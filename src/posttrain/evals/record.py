"""Evaluation results in ``evals.jsonl``, and the comparison of two: differences on the same prompts, and warnings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from posttrain.errors import RecordError
from posttrain.evals.fingerprint import differences
from posttrain.evals.result import EvalResult, PromptResult
from posttrain.functional.intervals import Interval, paired_difference
from posttrain.records.json_lines import JsonLines

FILE_NAME = "evals.jsonl"
"""One result per line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Two evaluations side by side."""

    left: EvalResult
    """The first."""
    right: EvalResult
    """The second."""
    differences: Mapping[str, Interval]
    """Second minus first by the number's name, over the prompts that both scored; empty without such prompts."""
    shared_prompts: int
    """Number of those prompts."""
    warnings: tuple[str, ...]
    """Why the numbers may not be comparable; empty if they are."""


def append_result(path: Path, result: EvalResult) -> None:
    """Append a result to a file of results; raises RecordError if the disk is full or broken."""
    JsonLines(path).append(result.to_json())


def read_results(path: Path) -> list[EvalResult]:
    """Return all results of a file in order; raises RecordError if a row is not a result."""
    results = []
    for number, row in enumerate(JsonLines(path).read(), start=1):
        try:
            results.append(EvalResult.from_json(row))
        except (KeyError, TypeError, AttributeError) as error:
            raise RecordError(
                f"{path}, line {number}: not an evaluation result ({error}). Remove that line."
            ) from error
    return results


def compare(left: EvalResult, right: EvalResult) -> Comparison:
    """Compare two results prompt by prompt; other protocols or other prompts become warning lines."""
    names = [f"pass@{k}" for k in left.pass_at if k in right.pass_at] + ["average"]
    if left.majority is not None and right.majority is not None:
        names.append("majority")
    found: dict[str, Interval] = {}
    shared = 0
    for name in names:
        before, after = _by_prompt(left, name), _by_prompt(right, name)
        both = [prompt for prompt in before if prompt in after]
        shared = max(shared, len(both))
        if both:
            found[name] = paired_difference([before[i] for i in both], [after[i] for i in both])
    return Comparison(
        left=left,
        right=right,
        differences=found,
        shared_prompts=shared,
        warnings=tuple(_warnings(left, right, shared)),
    )


def _by_prompt(result: EvalResult, name: str) -> dict[str, float]:
    if name.startswith("pass@"):
        k = int(name.removeprefix("pass@"))
        return {prompt.id: prompt.pass_at(k) for prompt in result.prompts if prompt.samples >= k}
    return result.by_prompt(_average if name == "average" else _majority)


def _average(prompt: PromptResult) -> float:
    return prompt.right / prompt.samples


def _majority(prompt: PromptResult) -> float:
    return prompt.majority


def _warnings(left: EvalResult, right: EvalResult, shared: int) -> list[str]:
    lines = [f"not the same protocol: {line}" for line in differences(left.fingerprint, right.fingerprint)]
    ids = [{prompt.id for prompt in result.prompts if prompt.samples} for result in (left, right)]
    if ids[0] != ids[1]:
        lines.append(f"not the same prompts: {len(ids[0])} and {len(ids[1])} were scored, {shared} of them in both")
    if not shared:
        lines.append("no prompt in common: the difference of the two numbers has no interval")
    return lines
