"""Measures posttrain beside TRL on the rows of `bench.workloads` and writes bench/results.json and bench/RESULTS.md.

    python -m bench.vs_trl --trl-python PATH [row ...] [--defaults row ...] [--steps N] [--models FOLDER] [--write]

PATH is an interpreter that has trl, in an environment of its own (see docs/performance.md). Same weights, prompts,
lengths and group size, one update per step, float32, one thread; the figure is CPU seconds, minimum over the steps.
Without ``--write`` it only prints. Rows that are not measured now keep their last numbers.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.compare import Comparison, compare
from bench.gemm import rates
from bench.models import build
from bench.needed import needed_seconds
from bench.results import RESULTS, keep, read_results, summary, write_report
from bench.workloads import Row, find_rows


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help="rows to measure; all if none is given")
    parser.add_argument("--trl-python", required=True, help="interpreter of the environment that has trl")
    parser.add_argument("--defaults", nargs="*", default=[], help="rows to measure against TRL's defaults as well")
    parser.add_argument("--only-defaults", action="store_true", help="measure nothing else")
    parser.add_argument("--steps", type=int, help="timed steps per side instead of the row's own number")
    parser.add_argument("--models", type=Path, default=Path("runs/bench-models"), help="where the two models are kept")
    parser.add_argument("--write", action="store_true", help="update bench/results.json and bench/RESULTS.md")
    return parser.parse_args(given)


def measure(row: Row, options: argparse.Namespace, peer: dict[str, Any]) -> Comparison:
    """One row, with its line on the screen."""
    model = str(build(options.models.resolve(), row.model))
    found = compare(row, model=model, here=sys.executable, there=options.trl_python, options=peer, steps=options.steps)
    print(summary(row, found), flush=True)
    return found


def main() -> None:
    """Measure, print and, if asked, keep."""
    options = arguments()
    results = read_results(RESULTS)
    now = rates()
    print({name: round(value, 1) for name, value in now.items()}, flush=True)
    for row in [] if options.only_defaults else find_rows(options.rows):
        found = measure(row, options, {})
        needed = needed_seconds(row, now, found.ours.tokens if row.free else None)
        results = keep(results, row, asdict(found), needed, now)
        if options.write:
            write_report(results)
    for row in find_rows(options.defaults) if options.defaults else []:
        found = measure(row, options, {"defaults": True})
        results = keep(results, row, asdict(found), {}, now, defaults=True)
        if options.write:
            write_report(results)


if __name__ == "__main__":
    main()
