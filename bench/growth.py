"""How cost grows with size: one table per dimension, with the fitted exponent and what it should be.

    python -m bench.growth [table ...] [--models FOLDER] [--write]

Ours alone, the 1 M character model, one thread, CPU seconds (minimum of two steps after one to warm up). Where memory
is measured every point has a process of its own. The exponent is the slope of log cost over log size.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.models import SIZES, build
from bench.ours import Ours
from bench.results import RESULTS, read_results, write_report
from bench.worker import Side
from bench.workloads import Row

BASE = Row(name="growth", trainer="grpo", model="char1m", count=2, group=8, prompt=32, completion=64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """One dimension."""

    title: str
    """What grows, and what should follow."""
    size: str
    """Name of the first column."""
    columns: tuple[str, ...]
    """Names of the measured columns."""
    fitted: tuple[tuple[str, str], ...]
    """Columns whose exponent is fitted, with what it should be."""
    lines: tuple[tuple[float, ...], ...]
    """Size and measured numbers."""


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Least-squares slope of log cost over log size."""
    x, y = np.log(np.asarray(sizes, float)), np.log(np.maximum(np.asarray(costs, float), 1e-9))
    return float(np.polyfit(x, y, 1)[0])


def markdown(table: Table) -> str:
    """The table with a line of exponents."""
    head = [table.size, *table.columns]
    lines = [f"### {table.title}", "", f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines += [f"| {' | '.join(f'{number:g}' for number in line)} |" for line in table.lines]
    sizes = [line[0] for line in table.lines]
    for name, wanted in table.fitted:
        place = 1 + table.columns.index(name)
        found = exponent(sizes, [line[place] for line in table.lines])
        lines += ["", f"Exponent of {name}: **{found:.2f}** (should be {wanted})."]
    return "\n".join([*lines, ""])


def measure(row: Row, model: str, steps: int = 2) -> dict[str, Any]:
    """Cheapest step and memory of a row in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        side = Side(
            "posttrain", sys.executable, "bench.ours", {"row": asdict(row), "model": model}, Path(folder) / "log"
        )
        try:
            side.ask({"do": "step"})
            paid = [side.ask({"do": "step"}) for _ in range(steps)]
            memory = side.ask({"do": "memory"})
        finally:
            side.end()
    best = min(paid, key=lambda step: step["cpu"])
    return {**best["stations"], "cpu": best["cpu"], "memory": memory["peak"] - memory["idle"]}


def train(found: dict[str, Any]) -> float:
    """Forward and backward together."""
    return float(found["forward"] + found["backward"])


def group_size(models: Path) -> Table:
    """The prompt is computed once, however many completions it has."""
    lines = []
    for group in (2, 4, 8, 16, 32):
        found = measure(replace(BASE, prompt=512, group=group), str(build(models, "char1m")))
        lines.append((group, *(round(value, 4) for value in (found["prefill"], train(found), train(found) / group))))
    slope, start = np.polyfit([line[0] for line in lines], [line[2] for line in lines], 1)
    return Table(
        title="Group size at a prompt of 512 tokens: the prompt's cost is flat "
        f"(training = {start:.2f} s for two prompts + {slope:.3f} s per further pair of completions)",
        size="completions per prompt",
        columns=("prefill CPU-s", "training CPU-s", "training CPU-s per completion"),
        fitted=(("prefill CPU-s", "0"), ("training CPU-s", "below 1: the prompt is paid once")),
        lines=tuple(lines),
    )


def vocabulary(models: Path) -> Table:
    """Logits exist only in tiles; what is left grows with the head's own parameters."""
    lines = []
    for size in (1024, 4096, 16384, 65536, 131072):
        found = measure(BASE, str(build(models, "char1m", size)), steps=1)
        own = 4 * size * SIZES["char1m"]["hidden"] * 4 / 2**20
        lines.append(
            (size, round(found["memory"]), round(own), round(max(found["memory"] - own, 1)), round(found["cpu"], 2))
        )
    return Table(
        title="Vocabulary: memory beside the head's own gradient, moments and one copy is flat",
        size="tokens in the vocabulary",
        columns=("memory above idle, MB", "of it the head's own, MB", "the rest, MB", "CPU-s"),
        fitted=(("the rest, MB", "near 0; tiles and kept probabilities are bounded"), ("CPU-s", "at most 1")),
        lines=tuple(lines),
    )


def completion(models: Path) -> Table:
    """The cache is never copied as a whole for a token."""
    lines = []
    for length in (64, 128, 256, 512, 1024, 2048):
        found = measure(replace(BASE, count=1, completion=length), str(build(models, "char1m")), steps=1)
        lines.append(
            (length, round(found["decode"], 3), round(1e3 * found["decode"] / length, 2), round(train(found), 3))
        )
    return Table(
        title="Completion length: decoding does not copy what is already there",
        size="tokens per completion",
        columns=("decode CPU-s", "ms per token of 8 rows", "training CPU-s"),
        fitted=(("decode CPU-s", "1 plus attention's own growth"), ("training CPU-s", "1 plus attention's own growth")),
        lines=tuple(lines),
    )


def prompts_per_step(models: Path) -> Table:
    """Memory follows the token budget of a microbatch and the rows decoded together."""
    lines = []
    for count in (1, 4, 16, 64, 256):
        found = measure(replace(BASE, count=count, completion=32), str(build(models, "char1m")), steps=1)
        lines.append((count, round(found["memory"]), round(found["cpu"], 2)))
    return Table(
        title="Prompts per step (8 completions each): memory is bounded by the token budget",
        size="prompts per step",
        columns=("memory above idle, MB", "CPU-s"),
        fitted=(("memory above idle, MB", "towards 0 once the budgets are full"), ("CPU-s", "1")),
        lines=tuple(lines),
    )


def ragged(models: Path) -> Table:
    """A batch with one long row costs what its tokens cost."""
    side = Ours({"row": asdict(replace(BASE, count=2)), "model": str(build(models, "char1m"))})
    learner: Any = side.assembly.learner
    lines = []
    for short in (16, 32, 64, 128, 256, 512):
        samples = side.given([512, *[short] * 31])
        tokens = sum(len(sample) for sample in samples)
        paid = []
        for _ in range(3):
            start = time.process_time()
            for microbatch in side.session.pack(samples):
                learner.forward_backward(microbatch, side.session.algorithm.loss)
            paid.append(time.process_time() - start)
            learner.clear_gradient()
        lines.append((tokens, short, round(min(paid), 3), round(1e6 * min(paid) / tokens, 1)))
    return Table(
        title="Ragged lengths (one row of 512, 31 shorter ones): cost follows the tokens, not the longest row",
        size="tokens",
        columns=("length of the 31", "training CPU-s", "µs per token"),
        fitted=(("training CPU-s", "1"),),
        lines=tuple(lines),
    )


TABLES: dict[str, Callable[[Path], Table]] = {
    "group_size": group_size,
    "vocabulary": vocabulary,
    "completion": completion,
    "ragged": ragged,
    "prompts_per_step": prompts_per_step,
}


def main() -> None:
    """Measure the tables asked for, print them and, if asked, keep them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", choices=[*TABLES, []], help="all if none is given")
    parser.add_argument("--models", type=Path, default=Path("runs/bench-models"))
    parser.add_argument("--write", action="store_true", help="keep them in bench/results.json and bench/RESULTS.md")
    options = parser.parse_args()
    for name in options.tables or TABLES:
        text = markdown(TABLES[name](options.models.resolve()))
        print(text, flush=True)
        if options.write:
            results = read_results(RESULTS)
            extra = {**results.get("extra", {}), f"growth-{name}": text}
            write_report({**results, "extra": extra})


if __name__ == "__main__":
    main()
