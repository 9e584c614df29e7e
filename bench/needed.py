"""The work that a step cannot do without, in seconds at the measured rate of matrix products.

Forward: 2 FLOPs per weight and token for the matrices of the body, 4 x heads x size per token and token seen in each
layer, 2 x hidden x vocabulary per token whose logits are needed. Backward: twice that. Each distinct prompt counts once
per step in sampling and once in training; the last token of a completion is never computed.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.models import SIZES
from bench.workloads import Row, answer_lengths


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """What a step computes at the least."""

    body: float
    """Tokens through the layers."""
    seen: float
    """Sum over them of the tokens each attends to."""
    head: float
    """Tokens whose logits are needed."""


VOCABULARY = {"char1m": 104, "bpe10m": 32000}


def flops(model: str, tokens: Tokens) -> tuple[float, float]:
    """FLOPs of one forward: (body with attention, head)."""
    size = SIZES[model]
    hidden, heads, inner = size["hidden"], size["heads"], size["intermediate"]
    weights = hidden * (heads + 4) * 32 + heads * 32 * hidden + 3 * hidden * inner
    layers = size["layers"]
    body = layers * (2.0 * weights * tokens.body + 4.0 * heads * 32 * tokens.seen)
    return body, 2.0 * hidden * VOCABULARY[model] * tokens.head


def branch(prompt: int, lengths: list[int]) -> Tokens:
    """Completions of one prompt, the prompt itself not counted."""
    own = sum(length - 1 for length in lengths)
    seen = sum((length - 1) * prompt + (length - 1) * length / 2 for length in lengths)
    return Tokens(body=own, seen=seen, head=sum(lengths))


def times(tokens: Tokens, count: float) -> Tokens:
    """The same ``count`` times over."""
    return Tokens(body=tokens.body * count, seen=tokens.seen * count, head=tokens.head * count)


def plus(left: Tokens, right: Tokens) -> Tokens:
    """Both together."""
    return Tokens(body=left.body + right.body, seen=left.seen + right.seen, head=left.head + right.head)


def needed_seconds(row: Row, rates: dict[str, float], sampled: float | None = None) -> dict[str, float]:
    """Seconds by station at the rates in GFLOP/s; ``sampled`` is the mean number of tokens of free completions."""
    tail = "" if row.model == "char1m" else "-9m"
    train = {"body": rates[f"body{tail}"], "head": rates[f"head{tail}"]}
    decode = {"body": rates[f"decode{tail}"], "head": rates.get(f"head-decode{tail}", rates["head"])}
    prompt = Tokens(body=row.prompt, seen=row.prompt**2 / 2, head=0)
    if row.trainer == "grpo":
        length = row.completion if sampled is None else round(sampled / (row.count * row.group))
        own = times(branch(row.prompt, [length] * row.group), row.count)
        prefill = times(prompt, row.count)
        forward = seconds(row.model, plus(own, prefill), train)
        found = {"prefill": seconds(row.model, prefill, train), "decode": seconds(row.model, own, decode)}
        return found | {"forward": forward, "backward": 2 * forward}
    sides = 1 if row.trainer == "sft" else 2
    lengths = [length + 1 for length in answer_lengths(row, row.count * sides)]
    whole = plus(branch(row.prompt, lengths), times(prompt, row.count))
    if row.trainer == "reward":
        whole = Tokens(body=whole.body + row.count * sides, seen=whole.seen, head=0)
    forward = seconds(row.model, whole, train)
    return {"forward": forward, "backward": 2 * forward} | ({"anchor": forward} if row.trainer == "dpo" else {})


def seconds(model: str, tokens: Tokens, rate: dict[str, float]) -> float:
    """One forward at the rates."""
    body, head = flops(model, tokens)
    return body / rate["body"] / 1e9 + head / rate["head"] / 1e9
