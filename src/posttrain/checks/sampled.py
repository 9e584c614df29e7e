"""Invariants of what is sampled and masked: stop token, loss mask, template, first rewards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posttrain.checks.report import CheckResult, stated
from posttrain.tasks.chat import Chat
from posttrain.types import Ending, Group, Sample, Segment


def check_stop_trained(
    segments: Sequence[Segment], endings: Sequence[Ending | None], stop_ids: frozenset[int]
) -> CheckResult:
    """Every row that ended by a stop token trains it last; a demonstration (ending None) must end with one."""
    name = "stop token is trained"
    ended = [s for s, ending in zip(segments, endings, strict=True) if ending in (None, Ending.STOP)]
    if not ended:
        return CheckResult(name=name, status="skip", measured="no sampled row ended by itself", expected="one that did")
    last = [next((i for i, on in reversed([*zip(s.ids, s.loss_mask, strict=True)]) if on), None) for s in ended]
    good = sum(token in stop_ids for token in last)
    return stated(name, good == len(ended), f"{good} of {len(ended)} rows", "all rows that ended by it")


def check_loss_mask(samples: Sequence[Sample]) -> CheckResult:
    """Some tokens train, and the prompt does not."""
    counts = [(int(sample.loss_mask.sum()), len(sample)) for sample in samples]
    prompts = sum(bool(sample.loss_mask[: sample.prompt_length].any()) for sample in samples)
    good = any(trained for trained, _ in counts) and all(trained < length for trained, length in counts)
    share = sum(trained for trained, _ in counts) / max(sum(length for _, length in counts), 1)
    measured = f"{share:.0%} of tokens train, {prompts} of {len(samples)} rows train their prompt"
    return stated("loss mask is neither empty nor full", good and not prompts, measured, "some tokens, no prompt")


def check_template(chat: Chat) -> CheckResult:
    """Whether the template keeps what was said: else each new turn begins a new segment."""
    witness = chat.witness()
    words = {True: "kept", False: "not kept", None: "no tool messages"}
    measured = f"tool turn: {words[witness.keeps_over_tool]}; user turn: {words[witness.keeps_over_user]}"
    return CheckResult(
        name="template keeps the prefix", status="pass", measured=measured, expected="said, not required"
    )


def check_truncated(groups: Sequence[Group]) -> CheckResult:
    """Few rollouts are cut off by the token limit."""
    cut = [rollout.truncated for group in groups for rollout in group.rollouts]
    share = float(np.mean(cut)) if cut else 0.0
    return stated("few rollouts are cut off", share <= 0.5, f"{share:.0%} truncated", "at most 50 %", otherwise="warn")


def check_spread(groups: Sequence[Group]) -> CheckResult:
    """Some group has different rewards: without that there is nothing to learn from."""
    spread = [len(set(group.rewards)) > 1 for group in groups if group.rollouts]
    mean = float(np.mean([r for group in groups for r in group.rewards])) if spread else float("nan")
    measured = f"{sum(spread)} of {len(spread)} groups differ, mean reward {mean:.2f}"
    return stated("rewards differ inside groups", any(spread), measured, "at least one group", otherwise="warn")
