"""What an algorithm costs in models and passes, read off its needs.

Memory in copies of the weights: a model that trains holds four (weights, gradient, two moments of AdamW), a frozen one
holds one. With LoRA the reference is the model without its adapters and costs none, and a trained model holds little
more than one. Passes are counted per row of a batch that is one optimizer step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from posttrain.types import Needs

__all__ = ["Cost", "cost_of", "cost_row"]

TRAINED_COPIES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Models and passes of an algorithm with its default options."""

    trained: tuple[str, ...]
    """Models that train."""
    frozen: tuple[str, ...]
    """Models that only score."""
    samples: str
    """What is sampled per prompt."""
    forwards: int
    """Passes without gradient over each row."""
    backwards: int
    """Passes with gradient over each row."""

    @property
    def copies(self) -> int:
        """Copies of the weights held in memory without LoRA, models of equal size."""
        return TRAINED_COPIES * len(self.trained) + len(self.frozen)


def cost_of(needs: Needs) -> Cost:
    """Read the cost off the needs."""
    teacher = needs.teacher_logprobs or needs.divergence is not None
    critic = needs.values and not needs.scores
    trained = ["reward model" if needs.scores else "policy"] + (["critic"] if critic else [])
    frozen = (["reference"] if needs.ref_logprobs else []) + (["teacher"] if teacher else [])
    scoring = (needs.ref_logprobs, needs.teacher_logprobs, needs.old_logprobs, critic, needs.divergence is not None)
    return Cost(
        trained=tuple(trained),
        frozen=tuple(frozen),
        samples=samples_of(needs),
        forwards=sum(map(bool, scoring)),
        backwards=len(trained),
    )


def samples_of(needs: Needs) -> str:
    """What is sampled per prompt, in words."""
    if not needs.engine:
        return "nothing"
    words = "1 rollout or more" if needs.group_size < 2 else f"a group of {needs.group_size} or more"
    if needs.greedy:
        words += ", and a greedy one"
    if needs.refill:
        words += f", up to {needs.refill + 1} draws of prompts"
    if 0 < needs.on_policy < 1 and not math.isclose(needs.on_policy, 1):
        words += f", in {needs.on_policy:.0%} of batches"
    return words


def cost_row(name: str, cost: Cost) -> tuple[str, ...]:
    """A line of the cost table."""
    models = " + ".join((*(f"{one} (trains)" for one in cost.trained), *cost.frozen))
    return name, models, str(cost.copies), cost.samples, str(cost.forwards), str(cost.backwards)
