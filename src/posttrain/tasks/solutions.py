"""Model solutions of grade-school problems with a verdict, as comparisons: GSM8K's example_model_solutions.jsonl.

Each row of that file (https://github.com/openai/grade-school-math, MIT) holds a question and the solutions of four
models with ``is_correct``. A problem that some solved and some did not becomes one row for the reader of rankings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

FINAL = "\nA: "
"""What stands before a solution's final answer."""


def solution_rankings(rows: Iterable[Mapping[str, Any]], *, pairs: bool = False) -> Iterator[dict[str, Any]]:
    """Yield question, ``ranking`` (right solutions first) and ``scores`` (1 right, 0 wrong); equal texts come once.

    With ``pairs`` only the first right and the first wrong solution stay. Problems that all models solved, or none,
    hold no comparison and are left out.
    """
    for row in rows:
        verdicts = {
            str(entry["solution"]): float(bool(entry["is_correct"]))
            for entry in row.values()
            if isinstance(entry, Mapping) and entry.get("solution")
        }
        right = [text for text, verdict in verdicts.items() if verdict]
        wrong = [text for text, verdict in verdicts.items() if not verdict]
        if not right or not wrong:
            continue
        if pairs:
            right, wrong = right[:1], wrong[:1]
        scores = [1.0] * len(right) + [0.0] * len(wrong)
        yield {"question": row["question"], "ranking": [*right, *wrong], "scores": scores}


def worked_solutions(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield question and ``solution`` of GSM8K's train or test file, one step per line, the answer behind ``A: ``."""
    for row in rows:
        yield {"question": row["question"], "solution": str(row["answer"]).replace("\n#### ", FINAL).strip()}


def held_out(rows: Iterable[Mapping[str, Any]], every: int = 5) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Deal rows into (training, held-out): one question in ``every`` is held out, with all its rows."""
    order: dict[str, int] = {}
    sides: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for row in rows:
        place = order.setdefault(str(row["question"]), len(order))
        sides[place % every == every - 1].append(dict(row))
    return sides
