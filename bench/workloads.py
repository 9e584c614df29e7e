"""What is compared: the rows of the benchmark table, and the texts both sides read. Needs only the standard library.

Every row names a model, a trainer and sizes; both sides read the same prompts and, where answers are given, the same
answers. A batch is the whole data set of a row, so each step sees the same rows whatever the order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Trainer = Literal["grpo", "sft", "dpo", "reward"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of the table."""

    name: str
    """How the line is asked for."""
    trainer: Trainer
    """What trains."""
    model: Literal["char1m", "bpe10m"]
    """Which of the two models of `bench.models`."""
    count: int
    """Prompts, demonstrations or pairs per step."""
    prompt: int
    """Tokens of each prompt."""
    completion: int
    """Tokens of each completion; with ``free`` the most."""
    group: int = 1
    """Completions per prompt."""
    free: bool = False
    """Completions end where the model ends them; else every one is forced to its full length."""
    ragged: bool = False
    """Answers have lengths from a quarter to seven quarters of ``completion``."""
    steps: int = 3
    """Timed steps of each side, after one to warm up."""
    aim: float = 1.0
    """The ratio of CPU seconds that the project wants."""
    memory_aim: float = 1.0
    """The most share of the peer's memory above idle that the project wants."""


_M1: dict[str, Any] = {"trainer": "grpo", "model": "char1m", "count": 8, "group": 8}
_M9: dict[str, Any] = {"trainer": "grpo", "model": "bpe10m", "group": 8, "memory_aim": 0.2, "steps": 2}
ROWS = (
    Row(name="grpo-1m-32-64", **_M1, prompt=32, completion=64, aim=2, steps=5),
    Row(name="grpo-1m-512-64", **_M1, prompt=512, completion=64, aim=5),
    Row(name="grpo-1m-32-free", **_M1, prompt=32, completion=256, free=True, aim=3),
    Row(name="grpo-9m-512-64", **_M9, count=2, prompt=512, completion=64, aim=9),
    Row(name="grpo-9m-32-64", **_M9, count=8, prompt=32, completion=64, aim=3),
    Row(name="sft-9m-ragged", trainer="sft", model="bpe10m", count=32, prompt=32, completion=64, ragged=True, aim=2),
    Row(name="dpo-9m", trainer="dpo", model="bpe10m", count=16, prompt=32, completion=64, aim=2, memory_aim=0.25),
    Row(name="reward-1m", trainer="reward", model="char1m", count=32, prompt=32, completion=64, aim=1.2, steps=5),
)
"""The table of the project's aims."""


def find_rows(names: Sequence[str]) -> list[Row]:
    """The rows of these names, or all."""
    known = {row.name: row for row in ROWS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"no row {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in names] if names else list(ROWS)


def texts(tokenizer: Any, count: int, length: int, seed: int = 0) -> list[str]:
    """Different texts of exactly ``length`` tokens each, the same for a seed on both sides."""
    if len(tokenizer) < 1000:
        draw = random.Random(seed)
        return ["".join(draw.choice("0123456789+-= \n") for _ in range(length)) for _ in range(count)]
    words = sorted(w[1:] for w in tokenizer.get_vocab() if w.startswith("Ġ") and w[1:].isalpha() and 4 < len(w) < 9)
    draw = random.Random(seed)
    return [_exactly(lambda text: len(tokenizer(text)["input_ids"]), draw, words, length) for _ in range(count)]


def _exactly(count: Callable[[str], int], draw: random.Random, words: Sequence[str], length: int) -> str:
    """Whole words whose text reads back as ``length`` tokens."""
    text = " ".join(["", *(draw.choice(words) for _ in range(length))])
    while count(text) > length:
        text = text[: text.rindex(" ")]
    while count(text) < length:
        text += " " + draw.choice(words)
    return text if count(text) == length else _exactly(count, draw, words, length)


def answer_lengths(row: Row, answers: int) -> list[int]:
    """Tokens of each given answer, its end token not counted."""
    if not row.ragged:
        return [row.completion - 1] * answers
    draw = random.Random(7)
    return [draw.randint(row.completion // 4, row.completion * 7 // 4) - 1 for _ in range(answers)]


def prompts(tokenizer: Any, row: Row) -> list[str]:
    """The prompts of a row."""
    return texts(tokenizer, row.count, row.prompt)


def answers(tokenizer: Any, row: Row) -> list[str]:
    """The given answers of a row: one per prompt for sft, chosen and rejected in turn for pairs."""
    wanted = row.count * (1 if row.trainer == "sft" else 2)
    return [texts(tokenizer, 1, length, seed=1 + i)[0] for i, length in enumerate(answer_lengths(row, wanted))]


def verdict(text: str) -> float:
    """The reward of a completion: spread out, and quick to compute."""
    return float(sum(map(ord, text)) % 7) + 0.001 * len(text)
