"""How far the teacher is from the student on what the student samples, before the first step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from posttrain.checks.report import CheckResult, stated
from posttrain.functional.distill_sampled import start_gap
from posttrain.loops.update import own_logprobs, teacher_logprobs, with_teacher
from posttrain.protocols import Learner, Packer
from posttrain.types import Sample

LIMIT = 0.15
"""Nats per token above which a teacher counts as far (see `functional.distill_sampled.start_gap`)."""


def disagreeing(samples: Sequence[Sample], learner: Learner, packer: Packer) -> list[Sample]:
    """Samples with their teacher's log-probabilities less one nat, for checks that compare gradients.

    Where teacher and student agree the gradient is rounding alone, and its relative differences mean nothing.
    """
    taught = with_teacher(samples, learner, packer)
    return [replace(s, teacher_logprobs=s.teacher_logprobs - 1.0) for s in taught if s.teacher_logprobs is not None]


def check_teacher(samples: Sequence[Sample], learner: Learner, packer: Packer) -> CheckResult:
    """Estimate KL(student || teacher) per token on the student's own rollouts; a far teacher is a warning.

    One with another tokenizer counts where its text meets the student's; if it does nowhere, the check fails.
    """
    mine = own_logprobs(samples, learner, packer)
    anchored = [replace(sample, old_logprobs=row) for sample, row in zip(samples, mine, strict=True)]
    rows = mine, teacher_logprobs(anchored, learner, packer, spread="divide")
    own, taught = (
        torch.from_numpy(np.concatenate([row[s.loss_mask] for s, row in zip(samples, part, strict=True)]))
        for part in rows
    )
    known = ~taught.isnan()
    own, taught = own[known], taught[known]
    if not len(own):
        found = f"0 of {len(known)} sampled tokens in a span of text that the teacher's tokens give back"
        return stated("the teacher is near the student", False, found, "some", otherwise="fail")
    gap = start_gap(taught, own, limit=LIMIT)
    measured = f"{gap.reverse_kl:.3f} nats per token over {gap.tokens} tokens"
    expected = f"at most {LIMIT}: from farther, imitation tends to collapse entropy before it teaches; warm start first"
    return stated("the teacher is near the student", not gap.far, measured, expected, otherwise="warn")
