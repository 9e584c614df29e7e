"""Invariants of preference losses: where they start, and that answers which are equally good move nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from posttrain.batches.build import weigh
from posttrain.batches.pack import pack_whole_groups
from posttrain.checks.exactness import clear_gradient, loss_and_gradient, tolerance
from posttrain.checks.report import CheckResult, bounded, stated
from posttrain.functional.preference_unpaired import kto_weight_range
from posttrain.loops.update import own_logprobs
from posttrain.protocols import Algorithm, Learner, Packer
from posttrain.types import Layout, Sample, Stat, Task, merge_stats


def check_preference_start(
    samples: Sequence[Sample], learner: Learner, algorithm: Algorithm, packer: Packer
) -> CheckResult:
    """With policy and reference alike, both measured, the preference loss has its known start: ln 2 for DPO."""
    expected = float(getattr(algorithm, "start", math.nan))
    name = f"preference loss starts at {expected:.4f}"
    reference = own_logprobs(samples, learner, packer, reference=True)
    rows = [replace(sample, ref_logprobs=row) for sample, row in zip(samples, reference, strict=True)]
    weighed = weigh(rows, algorithm.needs.streams)
    if not any(weighed[0].totals[count] for count in ("comparing", "rollouts")):
        return CheckResult(name=name, status="skip", measured="no answers to compare", expected="a pair")
    stats = merge_stats([learner.forward_backward(batch, algorithm.loss) for batch in packer(weighed)])
    clear_gradient(learner)
    found = stats.get("loss/preference", Stat(kind="sum", value=math.nan)).result
    result = bounded(name, abs(found - expected), tolerance(learner) * max(1.0, expected))
    return replace(result, measured=f"{found:.6f}, accuracy {stats['accuracy'].result:.2f}")


def check_label_balance(tasks: Iterable[Task], *, desirable_weight: float, undesirable_weight: float) -> CheckResult:
    """Good and bad answers pull alike: their weighted counts have a ratio between 1 and 4/3 (KTO's eq. 8)."""
    labels = [candidate.reward > 0 for task in tasks for candidate in task.candidates]
    good, bad = sum(labels), len(labels) - sum(labels)
    name = "good and bad answers balance"
    if not good or not bad:
        return stated(name, False, f"{good} good, {bad} bad", "both kinds", otherwise="warn")
    low, high = kto_weight_range(good, bad, undesirable_weight=undesirable_weight)
    fits = low * (1 - 1e-9) <= desirable_weight <= high * (1 + 1e-9)
    measured = f"{good} good, {bad} bad, desirable_weight {desirable_weight:g}"
    return stated(name, fits, measured, f"desirable_weight from {low:.3g} to {high:.3g}", otherwise="warn")


def check_equal_answers(samples: Sequence[Sample], learner: Learner, algorithm: Algorithm) -> CheckResult:
    """Answers of equal reward make no pair: the gradient is exactly 0."""
    equal = weigh([replace(sample, reward=0.5) for sample in samples], algorithm.needs.streams)
    padded: frozenset[Layout] = frozenset({"padded"})
    batches = pack_whole_groups(equal, token_budget=sum(map(len, equal)), allowed=padded)
    loss, gradient = loss_and_gradient(batches, learner, algorithm)
    largest = max((float(g.abs().max()) for g in gradient), default=0.0)
    return bounded("equally good answers move nothing", max(abs(loss), largest), 0.0)
