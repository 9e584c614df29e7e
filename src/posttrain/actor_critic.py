"""What the algorithms with a critic share: from samples with values to advantages and targets, and the value loss.

Segments of a rollout follow each other as one line of sampled tokens: an earlier segment goes on with the value of the
later one's first token, and the rollout's reward sits on its very last sampled token. A rollout that a limit cut off
goes on with the value behind its last token; one that ended goes on with nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from pydantic import Field, model_validator
from torch import Tensor

from posttrain.config import Settings
from posttrain.functional.controllers import AdaptiveEntropy, AdaptiveKL, FixedKL, Unit
from posttrain.functional.credit import Kind, credit
from posttrain.functional.critic import explained_variance, value_clip_active, value_loss
from posttrain.functional.recursion import last_of_row, turn_spans
from posttrain.functional.returns import token_rewards, with_kl
from posttrain.functional.whiten import whiten
from posttrain.policy_gradient import TokenBook, open_book, share, turn_rewards
from posttrain.stats import Stat
from posttrain.types import Ending, Group, Sample, TokenBatch

Earned = Mapping[tuple[int, int], Sequence[float]]
"""What each turn of a rollout earned, by (group, rollout)."""


def earned_by_turn(groups: Sequence[Group]) -> Earned:
    """The environment's scores after each turn; the rest of the reward belongs to the last one."""
    return {(group.position, rollout.index): turn_rewards(rollout) for group in groups for rollout in group.rollouts}


class ValueSettings(Settings):
    """How the critic learns and how credit is cut."""

    value_clip: float | None = Field(0.2, gt=0)
    """How far a value may move in one update, in units of the reward; None leaves it out."""
    value_coefficient: float = Field(1.0, gt=0)
    """Factor of the critic's loss; it matters only where both share a trunk."""
    gamma: float = Field(1.0, ge=0, le=1)
    """Discount per token (per turn for gae = "turn")."""
    bootstrap: bool = True
    """Rollouts that a limit cut off go on with the critic's value; false takes the limit for the end."""
    whiten: bool = True
    """Bring the batch's advantages to mean 0 and deviation 1."""


class GaeSettings(ValueSettings):
    """Generalised advantage estimation, over tokens or turns."""

    gae: Kind = "token"
    """Which steps credit flows over: see posttrain.functional.credit."""
    gae_lambda: float = Field(0.95, ge=0, le=1)
    """0 trusts the critic's next value, 1 the return alone."""
    turn_gamma: float | None = Field(None, ge=0, le=1)
    """Discount from a turn to the next; gamma if not given."""
    turn_lambda: float | None = Field(None, ge=0, le=1)
    """gae_lambda from a turn to the next if not given, 0 for gae = "turn_truncated"."""

    def credit(self, line: Line) -> tuple[Tensor, Tensor]:
        """Advantages and the critic's targets, [N] each."""
        return line.credit(
            self.gae,
            gamma=self.gamma,
            lambda_=self.gae_lambda,
            turn_gamma=self.turn_gamma,
            turn_lambda=self.turn_lambda,
        )


class ControlSettings(Settings):
    """Coefficients that may follow a measurement."""

    kl_target: float | None = Field(None, gt=0)
    """KL to the reference that its coefficient is steered to hold, in kl_unit (Ziegler et al.); None keeps it."""
    kl_horizon: float = Field(10_000, gt=0)
    """Rollouts over which an adaptive KL coefficient changes by a fifth at most."""
    kl_unit: Unit = "sequence-sum"
    """What kl_target is measured in: a sum over the rollout, its mean per token, or the mean over all tokens."""
    entropy_coefficient: float = Field(0.0, ge=0)
    """Bonus on the entropy of each position, or where it begins."""
    entropy_target: float | None = Field(None, gt=0)
    """Entropy in nats at or below which the bonus acts and grows (Skywork-OR1); None keeps the coefficient."""

    @model_validator(mode="after")
    def _something_to_steer(self) -> ControlSettings:
        if self.kl_target is not None and not getattr(self, "kl_coefficient", 0.0):
            raise ValueError("kl_target steers kl_coefficient by factors, so that must begin above 0")
        return self


class Steering:
    """The coefficients in use; a checkpoint keeps them."""

    def __init__(self, settings: ControlSettings, kl_coefficient: float) -> None:
        self.kl: FixedKL | AdaptiveKL = FixedKL(coefficient=kl_coefficient)
        if settings.kl_target is not None:
            self.kl = AdaptiveKL(
                coefficient=kl_coefficient,
                target=settings.kl_target,
                horizon=settings.kl_horizon,
                unit=settings.kl_unit,
            )
        self._later = self.kl
        self._targeted = settings.entropy_target is not None
        self._bonus = AdaptiveEntropy(
            coefficient=settings.entropy_coefficient, target=settings.entropy_target or float("inf")
        )

    @property
    def bonus(self) -> float:
        """Factor of the entropy bonus now."""
        return self._bonus.used if self._targeted else self._bonus.coefficient

    def measure(self, book: TokenBook) -> None:
        """Note the batch's KL log p_old - log p_ref; the coefficient follows when the batch is over."""
        self._later = self.kl.after(book.read("old_logprobs") - book.read("ref_logprobs"), book.rows, book.count)

    def observe(self, numbers: Mapping[str, float]) -> None:
        """Go on to the next batch's coefficients."""
        self.kl = self._later
        if self._targeted and "entropy" in numbers:
            self._bonus = self._bonus.after(numbers["entropy"])

    def numbers(self) -> dict[str, float]:
        """The coefficients in use, by canonical name."""
        return {"kl_coefficient": self.kl.coefficient, "entropy_coefficient": self.bonus}

    def state(self) -> dict[str, float]:
        """What a checkpoint keeps."""
        return {"kl": self.kl.coefficient, "entropy": self._bonus.coefficient, "last_entropy": self._bonus.last}

    def restore(self, state: Mapping[str, float]) -> None:
        """Take over what `state` gave."""
        self.kl = self._later = replace(self.kl, coefficient=state["kl"])
        self._bonus = replace(self._bonus, coefficient=state["entropy"], last=state["last_entropy"])


class Line:
    """A batch's sampled tokens with rewards and values, rollout after rollout."""

    def __init__(
        self,
        samples: Sequence[Sample],
        settings: ValueSettings,
        *,
        earned: Earned | None = None,
        kl_coefficient: float = 0.0,
    ) -> None:
        """``earned`` puts each turn's reward on the turn's last token; without it all lies on the rollout's last.

        ``kl_coefficient`` x (log p_old - log p_ref) is taken from each token's reward.
        """
        self.settings = settings
        self.book: TokenBook = open_book(samples)
        self.values = self.book.read("values")
        self.turns = self.book.read("turns").long()
        self.rewards = token_rewards(self.book.rewards, self.book.rows)
        if earned:
            self.rewards = self._by_turn(earned)
        if kl_coefficient:
            old, reference = self.book.read("old_logprobs"), self.book.read("ref_logprobs")
            self.rewards = with_kl(self.rewards, old, reference, kl_coefficient)
        self.after = torch.zeros(self.book.count, dtype=torch.float64)
        """[rollouts]: value behind the last token of a rollout that a limit cut off, else 0."""
        if settings.bootstrap:
            used = 0
            for sample in samples:
                length = int(sample.loss_mask.sum())
                if length and sample.ending is Ending.LENGTH:
                    self.after[self.book.rows[used]] = sample.bootstrap
                used += length

    def _by_turn(self, earned: Earned) -> Tensor:
        keys = list(dict.fromkeys((sample.group, sample.rollout) for sample in self.book.samples))
        spans, _ = turn_spans(self.book.rows, self.turns)
        rewards = torch.zeros_like(self.values)
        for place in torch.nonzero(last_of_row(spans)).flatten().tolist():
            rewards[place] = earned[keys[int(self.book.rows[place])]][int(self.turns[place])]
        return rewards

    def credit(
        self,
        kind: Kind,
        *,
        gamma: float,
        lambda_: float | Tensor,
        turn_gamma: float | None = None,
        turn_lambda: float | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Advantages and targets, [N] each; a target is NaN where the critic is not trained."""
        return credit(
            kind,
            self.rewards,
            self.values,
            self.book.rows,
            self.book.count,
            turns=self.turns,
            gamma=gamma,
            lambda_=lambda_,
            turn_gamma=turn_gamma,
            turn_lambda=turn_lambda,
            bootstrap=self.after,
        )

    def written(self, advantages: Tensor, targets: Tensor) -> list[Sample]:
        """The samples with these advantages, whitened if the settings say so, and returns."""
        if self.settings.whiten:
            advantages = whiten(advantages, self.book.rows, self.book.count)
        with_advantages = replace(self.book, samples=self.book.written("advantages", advantages))
        return with_advantages.written("returns", targets)

    def numbers(self, targets: Tensor) -> dict[str, float]:
        """How well the critic knew these targets before the update."""
        known = ~targets.isnan()
        if not bool(known.any()):
            return {}
        explained = explained_variance(self.values[known], targets[known])
        return {"value/explained": explained, "return/mean": float(targets[known].mean())}


def value_term(settings: ValueSettings, batch: TokenBatch, values: Tensor | None) -> tuple[Tensor, Mapping[str, Stat]]:
    """The critic's token losses [N] with their factor, 0 where it is not trained, and the share the clip stops."""
    assert values is not None
    assert batch.returns is not None
    assert batch.old_values is not None
    known = ~batch.returns.isnan()
    live, targets, old = values[known], batch.returns[known], batch.old_values[known]
    losses = torch.zeros_like(values).index_put(
        (known,), settings.value_coefficient * value_loss(live, targets, old, clip=settings.value_clip)
    )
    if settings.value_clip is None:
        return losses, {}
    with torch.no_grad():
        return losses, {"value/clip_share": share(value_clip_active(live, targets, old, clip=settings.value_clip))}
