"""The metric names of a run: each with its unit, what it is taken over, and one sentence.

A name stands for one meaning only, and a metric whose name is not here cannot be written. ``<...>`` in a name stands
for one part without a slash. Numbers of your own go under ``custom/``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Literal

from posttrain.errors import RecordError, did_you_mean

__all__ = ["NAMES", "MetricName", "check_names", "describe"]

Scope = Literal["token", "rollout", "group", "step"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricName:
    """One line of the table."""

    name: str
    """The name, or a pattern with ``<...>``."""
    unit: str
    """Unit of the number; ``share`` runs from 0 to 1."""
    scope: Scope
    """What it is taken over: trained tokens, rollouts, groups, or the step as a whole."""
    meaning: str
    """One sentence."""


def _table(scope: Scope, rows: Iterable[tuple[str, str, str]]) -> list[MetricName]:
    return [MetricName(name=name, unit=unit, scope=scope, meaning=meaning) for name, unit, meaning in rows]


_ROLLOUT = _table(
    "rollout",
    [
        ("reward/mean", "reward", "Mean reward of the rollouts that have one."),
        ("reward/std", "reward", "Standard deviation of the reward over the whole batch."),
        ("reward/max", "reward", "Largest reward of the batch."),
        ("reward/min", "reward", "Smallest reward of the batch."),
        ("reward/trained", "reward", "Mean reward of what trains; pulled to the middle by the filter, no ability."),
        ("reward/greedy", "reward", "Mean reward at temperature 0, the baseline of ReMax."),
        ("reward/<part>/mean", "score", "Mean raw score of one reward part over the rollouts it scored."),
        ("reward/<part>/std", "score", "Standard deviation of one reward part's raw score."),
        ("pass_rate", "share", "Rollouts that are right, before any group is filtered out."),
        ("length/mean", "tokens", "Mean number of sampled tokens per rollout."),
        ("length/max", "tokens", "Most sampled tokens of a rollout."),
        ("length/min", "tokens", "Fewest sampled tokens of a rollout."),
        ("length/right", "tokens", "Mean sampled tokens of right rollouts."),
        ("length/wrong", "tokens", "Mean sampled tokens of wrong rollouts."),
        ("turns/mean", "turns", "Mean number of completions per rollout."),
        ("turns/max", "turns", "Most completions of a rollout."),
        ("truncated_share", "share", "Rollouts whose last completion was cut off by a limit."),
        ("rollouts/count", "rollouts", "Rollouts sampled for the step."),
        ("rollouts/failed", "rollouts", "Rollouts dropped because a scorer or environment broke."),
        ("rollouts/timeout", "rollouts", "Rollouts dropped because a scorer did not finish in time."),
        ("rollouts/unparsable", "rollouts", "Answers that could not be read and got the rule's value."),
        ("logprobs/chosen", "nats", "Mean log-probability of the chosen (or good) answers, summed over their tokens."),
        ("logprobs/rejected", "nats", "The same of the rejected (or bad) answers."),
        ("rewards/chosen", "nats", "Mean implicit reward of chosen answers: beta x log ratio to the reference."),
        ("rewards/rejected", "nats", "The same of rejected answers."),
        ("rewards/shift", "nats", "What BCO takes off the implicit rewards."),
        ("tie_share", "share", "Preference pairs whose two rewards are the same number, as before the first step."),
        ("token_gap/mean", "tokens", "Mean tokens of the chosen answer minus those of the rejected one."),
        ("advantage/mean", "advantage", "Mean advantage per rollout."),
        ("advantage/std", "advantage", "Standard deviation of the advantage over rollouts."),
        ("advantage/max", "advantage", "Largest advantage."),
        ("advantage/min", "advantage", "Smallest advantage."),
    ],
)
_GROUP = _table(
    "group",
    [
        ("groups/count", "groups", "Groups that came back from the engine."),
        ("groups/all_right", "groups", "Groups in which every rollout is right."),
        ("groups/all_wrong", "groups", "Groups in which no rollout is right."),
        ("groups/mixed", "groups", "Groups with right and wrong rollouts."),
        ("groups/equal", "groups", "Groups in which all rewards are the same number: they teach nothing."),
        ("groups/dropped", "groups", "Groups left out of the batch by the algorithm's filter or for failures."),
        ("groups/trained", "groups", "Groups of the batch after dynamic sampling."),
        ("groups/carried", "groups", "Surplus groups of earlier batches among them."),
        ("groups/surplus", "groups", "Groups that wait for the next batch."),
        ("groups/stale", "groups", "Surplus groups dropped because the weights have moved on too far."),
        ("groups/draws", "draws", "Draws that it took to fill the batch."),
        ("groups/acceptance", "share", "New groups that the algorithm's filter let through."),
        ("groups/solve_all", "groups", "New groups of equal rewards above one half."),
        ("groups/solve_none", "groups", "New groups of equal rewards up to one half."),
        ("groups/std", "reward", "Mean over groups of the standard deviation of their rewards."),
    ],
)
_TOKEN = _table(
    "token",
    [
        ("entropy", "nats", "Mean entropy of the policy at the trained tokens."),
        ("kl_ref/k1", "nats", "KL to the reference, estimator log p - log q: unbiased, may be negative."),
        ("kl_ref/k3", "nats", "KL to the reference, estimator q/p - 1 - log q/p: never negative."),
        (
            "kl_ref/mismatched",
            "nats",
            "KTO's reference point: mean log ratio of answers under other prompts, at least 0.",
        ),
        ("kl_old/k1", "nats", "KL from the start of the update to now, estimator k1."),
        ("kl_old/k3", "nats", "KL from the start of the update to now, estimator k3."),
        ("kl_teacher", "nats", "Divergence from the teacher that distillation lowers."),
        ("teacher/unaligned", "share", "Trained tokens in no span shared with a teacher of another tokenizer."),
        ("ratio/mean", "ratio", "Mean of exp(logprobs - old_logprobs); 1 at the first step of an update."),
        ("ratio/max", "ratio", "Largest of these ratios."),
        ("ratio/min", "ratio", "Smallest of these ratios."),
        ("clip_share/low", "share", "Tokens whose gradient the lower clip stops."),
        ("clip_share/high", "share", "Tokens whose gradient the upper clip stops."),
        ("clip_share/dual", "share", "Tokens whose loss the dual clip bounds."),
        ("weight_share/low", "share", "Tokens whose weight is raised to its lower bound; they train."),
        ("weight_share/high", "share", "Tokens whose weight is lowered to its upper bound; they train."),
        ("logprob_gap/mean", "nats", "Mean |learner logprob - engine logprob| of the sampled tokens."),
        ("logprob_gap/max", "nats", "Largest such difference."),
        ("mismatch/mean", "ratio", "Mean mismatch weight exp(old_logprobs - rollout_logprobs), before truncation."),
        ("mismatch/max", "ratio", "Largest mismatch weight, before truncation."),
        ("mismatch/clipped_share", "share", "Tokens whose mismatch weight was truncated or masked."),
        ("mismatch/used", "ratio", "Mean weight that the loss applies, dropped tokens included as 0."),
        ("mismatch/k1", "nats", "KL from engine to learner, estimator k1; may be negative."),
        ("mismatch/k3", "nats", "KL from engine to learner, estimator k3."),
        ("mismatch/chi_square", "1", "Mean squared weight minus 1, by token."),
        ("mismatch/chi_square_sequence", "1", "The same of each rollout's product of weights."),
        (
            "mismatch/effective_share",
            "share",
            "Effective sample size over the number of tokens; below one half alarms.",
        ),
        ("mismatch/far_share", "share", "Tokens whose log weight is beyond 1 nat."),
        ("mismatch/correlation", "1", "Pearson correlation of the two probabilities."),
        ("mismatch/dropped_share", "share", "Tokens that a mask or rejection dropped."),
        ("staleness/mean", "versions", "Mean number of versions between sampling a token and training it."),
        ("staleness/max", "versions", "Largest such number."),
        ("logprob/mean", "nats", "Mean log-probability of the trained tokens."),
        ("accuracy", "share", "Trained tokens, or preference pairs, that the model ranks first."),
        ("value/mean", "reward", "Mean of the critic's values."),
        ("value/clip_share", "share", "Tokens at which the value clip stops the critic."),
        ("return/mean", "reward", "Mean of what the critic is to predict."),
        ("value/explained", "share", "Share of the returns' variance that the critic explains; may be negative."),
    ],
)
_STEP = _table(
    "step",
    [
        ("loss", "loss", "The loss whose gradient was taken, over the step's whole batch."),
        ("loss/<part>", "loss", "One part of the loss, with its factor."),
        ("grad_norm", "norm", "Norm of the whole gradient before clipping."),
        ("learning_rate", "rate", "Learning rate of the step."),
        ("kl_coefficient", "factor", "Factor of the KL penalty in this step."),
        ("entropy_coefficient", "factor", "Factor of the entropy bonus in this step."),
        ("steps/nonfinite", "steps", "1 if the step was skipped because its loss or gradient was not finite."),
        ("steps/nonfinite_in_a_row", "steps", "Skipped steps since the last good one."),
        ("tokens/sampled", "tokens", "Tokens the engine sampled for the step."),
        ("tokens/trained", "tokens", "Tokens with a weight in the loss."),
        ("tokens/computed", "tokens", "Token places computed in training forward passes, padding included."),
        ("tokens_per_second/generate", "tokens/s", "Sampled tokens per second of generation."),
        ("tokens_per_second/train", "tokens/s", "Trained tokens per second of training."),
        ("seconds/<station>", "s", "Wall time of one station of the step."),
        ("memory/peak_mb", "MB", "Most memory the process has held so far."),
        ("samples/<kind>", "samples", "Samples of one kind: trained, skipped for zero advantage, too long."),
        ("microbatches", "microbatches", "Forward-backward passes of the step."),
        ("tasks/resting", "tasks", "Tasks that the curriculum leaves out in this pass."),
        ("epoch", "epochs", "Passes over the tasks when the step began."),
        ("margin/mean", "nats", "Mean implicit or modelled reward of chosen minus rejected."),
        ("beta", "factor", "beta-DPO's beta of the batch."),
        ("gap/mean", "nats", "beta-DPO's running mean of the gaps of log ratios."),
        ("pairs/kept_share", "share", "Preference pairs of the batch that beta-DPO kept."),
        ("eval/<name>", "see name", "A number of the evaluation made after this step."),
        ("custom/<name>", "your own", "A number of your own algorithm, reward or environment."),
    ],
)

NAMES: tuple[MetricName, ...] = (*_ROLLOUT, *_GROUP, *_TOKEN, *_STEP)
"""The whole table."""


def check_names(names: Iterable[str]) -> None:
    """Refuse names that the table does not know.

    Raises:
        RecordError: names the first unknown one and the nearest known one.
    """
    for name in names:
        if describe(name) is None:
            known = [row.name for row in NAMES]
            raise RecordError(
                f"metric '{name}' is not in the table of records/names.py.{did_you_mean(name, known)} "
                "Numbers of your own go under custom/."
            )


@cache
def describe(name: str) -> MetricName | None:
    """Return the table's line for a metric, the exact name before a pattern; None if there is none."""
    exact = [row for row in NAMES if row.name == name]
    matching = [row for row in NAMES if "<" in row.name and _pattern(row.name).fullmatch(name)]
    return next(iter(exact + matching), None)


@cache
def _pattern(name: str) -> re.Pattern[str]:
    pieces = re.split(r"<[^>]+>", name)
    tail = r".+" if name.startswith("custom/") else r"[^/]+"
    return re.compile(tail.join(re.escape(piece) for piece in pieces))
