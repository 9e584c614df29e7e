"""Scored groups to evaluation numbers: one row per prompt, then means over prompts with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from posttrain.errors import ConfigError, RewardError
from posttrain.evals.fingerprint import Fingerprint
from posttrain.evals.result import EvalResult, PromptResult
from posttrain.functional.intervals import prompt_interval
from posttrain.functional.passk import majority_vote
from posttrain.types import Group, Outcome, Rollout, Score


@dataclass(frozen=True, kw_only=True, slots=True)
class Right:
    """The rule that says whether a rollout is right: one reward part reaches a threshold."""

    part: str | None = None
    """Name of the deciding part; the first one that applies if not given."""
    threshold: float = 1.0
    """The least raw value that is right."""

    def score(self, rollout: Rollout) -> Score | None:
        """The deciding score, None if no part applies."""
        named = [score for score in rollout.scores if self.part in (None, score.name)]
        return next((score for score in named if score.outcome is Outcome.UNPARSABLE or score.value is not None), None)

    def __call__(self, rollout: Rollout) -> bool:
        """Whether the rollout is right; an unparsable answer never is."""
        score = self.score(rollout)
        return score is not None and score.outcome is Outcome.SCORED and (score.value or 0.0) >= self.threshold

    def answer(self, rollout: Rollout) -> str | None:
        """The answer as the deciding part read it, None if it could not be read."""
        score = self.score(rollout)
        return score.detail if score is not None and score.outcome is Outcome.SCORED else None


def summarise_group(group: Group, right: Right) -> PromptResult:
    """Return one prompt's counts from its scored rollouts."""
    rollouts = group.rollouts
    verdicts = [right(rollout) for rollout in rollouts]
    answers = [right.answer(rollout) for rollout in rollouts]
    return PromptResult(
        id=group.task.id,
        samples=len(rollouts),
        right=sum(verdicts),
        majority=majority_vote(answers, verdicts) if rollouts else 0.0,
        reward=sum(group.rewards) / len(rollouts) if rollouts else 0.0,
        truncated=sum(rollout.truncated for rollout in rollouts),
        tokens=sum(rollout.sampled_count for rollout in rollouts),
        answers=len({answer for answer in answers if answer}),
        failed=group.failed,
    )


def summarise(
    prompts: Sequence[PromptResult],
    *,
    ks: Sequence[int],
    fingerprint: Fingerprint,
    step: int | None = None,
    label: str = "",
    reasons: Mapping[str, int] | None = None,
) -> EvalResult:
    """Return the numbers over prompts with 95 % intervals; prompts without a scored sample are counted apart.

    ``reasons``: why scoring failed and how often, for the warnings.
    Raises RewardError if scoring failed so often that a number has no prompt left.
    """
    scored = [prompt for prompt in prompts if prompt.samples]
    if not scored:
        why = "".join(f"\n  {line}" for line in _reasons(reasons or {}))
        raise RewardError(f"every sample of all {len(prompts)} prompts failed: there is nothing to report{why}")
    samples = sum(prompt.samples for prompt in scored)
    return EvalResult(
        pass_at={k: prompt_interval(_pass_values(scored, k)) for k in ks},
        average=prompt_interval([prompt.right / prompt.samples for prompt in scored]),
        majority=prompt_interval([p.majority for p in scored]) if any(p.answers for p in scored) else None,
        reward=_mean([prompt.reward for prompt in scored]),
        truncated_share=sum(prompt.truncated for prompt in scored) / samples,
        mean_length=sum(prompt.tokens for prompt in scored) / samples,
        failed=sum(prompt.failed for prompt in prompts),
        unscored=len(prompts) - len(scored),
        prompts=tuple(prompts),
        fingerprint=fingerprint,
        step=step,
        label=label,
        warnings=(*_warnings(prompts, ks), *_reasons(reasons or {})),
    )


def require_ks(ks: Sequence[int], samples: int) -> None:
    """Raise ConfigError unless every k can be estimated from so many samples per prompt."""
    wrong = [k for k in ks if not 1 <= k <= samples]
    if wrong or not ks:
        raise ConfigError(
            f"pass@k for k = {wrong or 'none'} cannot be estimated from {samples} samples per prompt: "
            f"give k from 1 to {samples}, or sample more"
        )


def _pass_values(prompts: Sequence[PromptResult], k: int) -> list[float]:
    values = [prompt.pass_at(k) for prompt in prompts if prompt.samples >= k]
    if not values:
        raise RewardError(f"scoring failed so often that no prompt has the {k} scored samples that pass@{k} needs")
    return values


def _warnings(prompts: Sequence[PromptResult], ks: Sequence[int]) -> list[str]:
    lines = []
    failed = sum(prompt.failed for prompt in prompts)
    if failed:
        lines.append(f"{failed} samples failed or could not be scored; they count in no number")
    for k in sorted(ks):
        short = sum(prompt.samples < k for prompt in prompts)
        if short:
            lines.append(f"pass@{k} leaves out {short} prompts with fewer than {k} scored samples")
    return lines


def _reasons(reasons: Mapping[str, int]) -> list[str]:
    often = sorted(reasons.items(), key=lambda pair: -pair[1])
    return [f"{count} x {reason}" for reason, count in often[:3]]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
