"""The recipe's section for tokens that another policy sampled: the engine's rounding, or older weights.

log w = old_logprobs - rollout_logprobs by token. Two forms, never both, which would count the gap twice:

decoupled   f(w) x loss with pi / old          AReaL, https://arxiv.org/abs/2505.24298: the clip stays centred on old
bypass      loss with pi / rollout             rollout stands in for old, no further weight

Rows may also be rejected: by the geometric mean of w, or as off-policy answers with a negative advantage (OPSM,
DeepSeek-V3.2, https://arxiv.org/abs/2512.02556). What a section says and nothing reads is refused.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from posttrain.settings import Settings


class Correction(Settings):
    """How the loss allows for tokens that the learner's weights did not sample."""

    type: Literal["none", "decoupled", "bypass"] = "none"
    """Weigh by old / rollout (decoupled), let rollout stand in for old (bypass), or do nothing."""
    weight: Literal["none", "truncate", "mask"] = "none"
    """min(w, cap) (TIS), or w inside [floor, cap] and 0 outside (MIS; IcePop with 0.5 and 5)."""
    level: Literal["token", "sequence"] = "token"
    """w of each token, or the product over its rollout."""
    cap: float = Field(2.0, gt=0)
    """Largest weight."""
    floor: float = Field(0.0, ge=0)
    """Smallest weight that the mask keeps; truncation has none, for raising small weights biases upwards."""
    geometric: tuple[float, float] | None = None
    """Reject rollouts whose geometric mean of w lies outside these bounds."""
    opsm: float | None = None
    """Reject rollouts with a negative advantage whose mean of -log w exceeds this."""
    denominator: Literal["original", "kept"] = "original"
    """Whether what is dropped stays in the reduction's counts, or the rest is averaged as if it had never been."""

    @property
    def rejects(self) -> bool:
        """Whether anything may be dropped."""
        return self.weight == "mask" or self.geometric is not None or self.opsm is not None

    @property
    def recomputes(self) -> bool:
        """Whether it needs the learner's own log-probabilities from the start of the update."""
        return self.type == "decoupled" or self.geometric is not None or self.opsm is not None

    @model_validator(mode="after")
    def _no_contradiction(self) -> Correction:
        problem = self._problem()
        if problem:
            raise ValueError(problem)
        return self

    def _problem(self) -> str:
        """The first thing that does not fit together, or nothing."""
        does = self.weight != "none" or self.rejects
        unread = [name for name, usual in (("level", "token"), ("cap", 2.0)) if getattr(self, name) != usual]
        low, high = self.geometric or (0.0, 1.0)
        rules = [
            (self.type == "none" and does, "type 'none' corrects nothing: give type = 'decoupled' or 'bypass'"),
            (
                self.type == "decoupled" and not does,
                "decoupled needs a weight (truncate or mask) or a rejection (geometric, opsm), or it changes nothing",
            ),
            (
                self.type == "bypass" and self.weight != "none",
                "bypass has pi / rollout in the ratio already: a weight would count the gap twice",
            ),
            (self.weight == "none" and bool(unread), f"{', '.join(unread)}: nothing reads it without a weight"),
            (
                self.weight != "mask" and self.floor > 0,
                "floor belongs to weight = 'mask': raising small weights biases upwards",
            ),
            (self.floor >= self.cap, f"floor = {self.floor:g} must be below cap = {self.cap:g}"),
            (low >= high, f"geometric = {self.geometric} must be a lower and a higher bound on w"),
            (self.denominator == "kept" and not self.rejects, "denominator = 'kept': nothing is ever dropped here"),
        ]
        return next((message for broken, message in rules if broken), "")
