"""OPD, on-policy distillation: the student samples, the teacher scores the student's own prefixes, token by token.

Sources: https://thinkingmachines.ai/blog/on-policy-distillation (sampled), MiMo-V2-Flash's report, eq. 7 to 9 (sampled,
with a reward), DeepSeek-V4, arXiv 2606.19348, eq. 29 (full). Assumes a teacher near enough, with the student's
tokenizer and template; p is the student, q the teacher:

    sampled   A_t = clip(log q(y_t) - log p_old(y_t) [+ KL_t], +-limit),  L = c sum_t w_t [-min(r A, clip(r) A)_t]
    full      L = c sum_t w_t KL(p || q)_t over the whole vocabulary
    top_k     the same over k tokens and what becomes of the rest (a tail bucket: never negative, never above full)
    reward    + a sum_t v_t [-min(r A, clip(r) A)_t] with A the reward centred in its group, in a stream of its own

The discount is 0: each token answers for itself at the prefix that was visited; KL_t (``baseline``, vOPD, arXiv
2605.07865) takes variance away at full's price. A = 0 is agreement, so A is never whitened. Defaults: MiMo's 1 / |y|.
``cross_tokenizer`` (sampled): A_t is that of the shared span of text with y_t, else 0; limits: `batches.alignment`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field
from torch import Tensor, where

from posttrain.functional.distill import log_softmax
from posttrain.functional.distill_sampled import sampled_advantage
from posttrain.functional.distill_topk import Rest, topk_divergence
from posttrain.functional.ratios import token_ratio
from posttrain.functional.surrogates import clipped
from posttrain.policy_gradient import GroupScale, anchor, by_group, weighted
from posttrain.types import Group, Loss, Needs, Stat, TokenBatch

__all__ = ["OPD", "Config"]


class Config(GroupScale):
    """Every term of the formula; scale, ddof and epsilon are those of the reward's advantage."""

    form: Literal["sampled", "full", "top_k"] = "sampled"
    """What is known of the teacher at each token: the sampled token, every token, or the best k."""
    coefficient: float = Field(1.0, gt=0)
    """c: weight of the distillation part."""
    reduction: str = "seq-mean-token-mean"
    """Token weights of the distillation part: see posttrain.functional.reduce."""
    limit: float | None = Field(None, gt=0)
    """Bound on a sampled token's advantage, in nats."""
    baseline: bool = False
    """Add the full reverse KL to sampled advantages, which makes their mean zero."""
    top_k: int = Field(64, gt=0)
    """k of form top_k."""
    support: Literal["student", "teacher"] = "student"
    """Whose best k tokens they are."""
    rest: Rest = "tail"
    """What becomes of the other tokens: see posttrain.functional.distill_topk."""
    reward_coefficient: float = Field(0.0, ge=0)
    """a: weight of the reward part; 0 needs no reward."""
    reward_reduction: str = "seq-mean-token-mean"
    """Token weights of the reward part."""
    clip_low: float = Field(0.2, gt=0, le=1)
    """How far below 1 the ratio may push; with one step per batch it is 1."""
    clip_high: float = Field(0.2, gt=0)
    """How far above 1 the ratio may push."""
    cross_tokenizer: bool = False
    """Let teachers of other tokenizers score spans of text: form sampled, single-turn text answers only."""


class OPD:
    """Reverse KL on the student's own answers, alone or beside a reward."""

    def __init__(self, config: Config) -> None:
        self.config = config
        sampled, rewarded = config.form == "sampled", config.reward_coefficient > 0
        streams = {"distillation": config.reduction} | ({"policy": config.reward_reduction} if rewarded else {})
        self.needs = Needs(
            group_size=2 if rewarded else 1,
            teacher_logprobs=sampled,
            aligned_teacher=config.cross_tokenizer,
            divergence=self._divergence if config.baseline or not sampled else None,
            streams=streams,
        )

    def _divergence(self, student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
        student, teacher = log_softmax(student_logits), log_softmax(teacher_logits)
        if self.config.form != "top_k" or self.config.top_k >= student.shape[-1]:
            return topk_divergence(student, teacher, direction="reverse", rest="generalised")
        ids = (student.detach() if self.config.support == "student" else teacher).topk(self.config.top_k).indices
        student, teacher = student.gather(-1, ids), teacher.gather(-1, ids)
        return topk_divergence(student, teacher, direction="reverse", rest=self.config.rest)

    def keep(self, group: Group) -> bool:
        """Every answer trains."""
        return True

    def advantages(self, groups: Sequence[Group]) -> list[list[np.ndarray]]:
        """The reward's, per rollout; zeros without a reward part."""
        if not self.config.reward_coefficient:
            return [[np.asarray(0.0) for _ in group.rollouts] for group in groups]
        return by_group(groups, self.config.estimate)

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """The distillation part and, if asked for, the reward part, each with its own token weights."""
        config, old, found = self.config, anchor(batch, logprobs), batch.divergence
        ratio, bounds = token_ratio(logprobs, old), {"clip_low": config.clip_low, "clip_high": config.clip_high}
        if config.form == "sampled":
            assert batch.teacher_logprobs is not None
            silent = batch.teacher_logprobs.isnan() & config.cross_tokenizer
            said = where(silent, old, batch.teacher_logprobs)  # no word on a token: as if both agreed
            taught = sampled_advantage(said, old, limit=config.limit, baseline=found)
            per_token, gap = clipped(ratio, taught, **bounds), (old - said)[~silent]
        else:
            assert found is not None
            per_token, gap = found, found.detach()
        parts = {"distillation": config.coefficient * per_token}
        if config.reward_coefficient:
            parts["policy"] = config.reward_coefficient * clipped(ratio, batch.advantages, **bounds)
        stats = {"kl_teacher": Stat(kind="mean", value=float(gap.double().sum()), count=len(gap))}
        if config.cross_tokenizer:
            stats["teacher/unaligned"] = Stat(kind="mean", value=float(len(old) - len(gap)), count=len(old))
        return weighted(batch, parts, stats)
