"""Fails if a ratio to TRL has fallen below four fifths of the recorded one: under three minutes, CPU seconds.

python -m bench.smoke --trl-python PATH [row ...] [--models FOLDER]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.compare import compare
from bench.models import build
from bench.results import RESULTS, read_results, summary
from bench.workloads import find_rows

SHARE = 0.8
QUICK = ("grpo-1m-32-64", "reward-1m")
APART = 1e-5
"""Gradients further apart than this, relative, are not the same computation."""


def complaint(name: str, ratio: float, gradient: float | None, recorded: Mapping[str, Any]) -> str | None:
    """What is wrong with a measured row, or None."""
    if name not in recorded:
        return f"{name}: nothing is recorded; run make bench first"
    if gradient is not None and gradient > APART:
        return f"{name}: the gradients are {gradient:.1e} apart, expected at most {APART:.0e}"
    wanted = SHARE * recorded[name]["ratio"]
    if ratio < wanted:
        return f"{name}: {ratio:.2f}x, expected at least {wanted:.2f}x ({SHARE:g} of the recorded ratio)"
    return None


def main() -> None:
    """Measure the quick rows and leave with 1 if one is too slow."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help=f"rows to measure; {', '.join(QUICK)} if none is given")
    parser.add_argument("--trl-python", required=True, help="interpreter of the environment that has trl")
    parser.add_argument("--models", type=Path, default=Path("runs/bench-models"), help="where the models are kept")
    options = parser.parse_args()
    recorded = read_results(RESULTS)["rows"]
    wrong = []
    for row in find_rows(options.rows or list(QUICK)):
        model = str(build(options.models.resolve(), row.model))
        found = compare(row, model=model, here=sys.executable, there=options.trl_python, steps=3)
        print(summary(row, found), flush=True)
        wrong.append(complaint(row.name, found.ratio, found.gradient, recorded))
    problems = [text for text in wrong if text]
    print("\n".join(problems) or "no ratio has fallen")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
