"""DPO, direct preference optimisation: https://arxiv.org/abs/2305.18290, eq. 7, and the losses that share its pairs.

Assumes a frozen reference, and that preferences follow Bradley-Terry with reward beta log(pi / ref):

    g = log(pi / ref)(chosen) - log(pi / ref)(rejected),  sums over each answer's tokens, the stop token included
    L = mean over the step's pairs of -log sigmoid(beta g)

``loss`` swaps the term for another: `posttrain.functional.preference_pairs` has each formula with its paper. One chosen
with many rejected makes a pair with each. ``online`` takes pairs from groups sampled and scored now, the best against
the worst (https://arxiv.org/abs/2402.04792). beta 0.1 is the paper's (appendix B); all other defaults leave DPO as it
is, or are those of the papers that the option names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from posttrain.config import Settings
from posttrain.functional.preference import Pairs, wpo_weights
from posttrain.functional.preference_named import RELATIVE, PairLoss, named_loss
from posttrain.functional.preference_pairs import Divergence, Normaliser, chosen_nll, dpo_positive, f_dpo
from posttrain.pairing import Comparing, build_pairs, equal_pair, find_answers, find_pairs, make_loss, pair_stats
from posttrain.types import Loss, Needs, TokenBatch

__all__ = ["DPO", "Config"]


class Config(Settings):
    """Every term of the loss; the defaults are the paper."""

    loss: PairLoss = "sigmoid"
    """What is computed per pair; sigmoid is DPO itself."""
    beta: float = Field(0.1, gt=0)
    """How strongly the reference holds (tau of the IPO losses; Tulu 3 takes 5 for length_normalised)."""
    flip: float = Field(0.1, ge=0, lt=0.5)
    """Share of wrong labels that cdpo and robust assume."""
    smoothing: float = Field(1e-3, gt=0, lt=0.5)
    """Label smoothing of exo."""
    divergence: Divergence = "reverse_kl"
    """What holds the policy at the reference; others than reverse_kl make sigmoid f-DPO."""
    divergence_alpha: float = Field(0.5, gt=0, lt=1)
    """Parameter of the alpha divergence: near 0 reverse KL, near 1 forward KL."""
    penalty: float = Field(0.0, ge=0)
    """DPOP's lambda (its paper: 50): the margin shrinks where the chosen answer falls below the reference."""
    nll_coefficient: float = Field(0.0, ge=0)
    """Factor of the chosen answer's negative log-likelihood (RPO)."""
    nll_normaliser: Normaliser = "sequence_mean"
    """Its divisor: sequence_mean is iterative RPO's, sequence_sum regularised PO's, batch_token_mean TRL's."""
    weighting: Literal["none", "wpo"] = "none"
    """WPO weighs each pair by how likely the policy itself would write both answers."""
    length_alpha: float = Field(1.0, ge=0, le=1)
    """LD-DPO: weight of the tokens by which the longer answer exceeds the shorter; 1 is DPO."""
    reference_free: bool = False
    """Take the reference as uniform: no second model, and nothing holds the policy."""
    online: bool = False
    """Sample and score groups now instead of reading pairs."""

    @model_validator(mode="after")
    def _fits(self) -> Config:
        changed = "penalty (DPOP)" if self.penalty else f"divergence = '{self.divergence}' (f-DPO)"
        special = self.penalty > 0 or self.divergence != "reverse_kl"
        if special and (self.loss != "sigmoid" or (self.penalty and self.divergence != "reverse_kl")):
            raise ValueError(f"{changed} changes DPO's own term: use loss = 'sigmoid', and one of the two")
        if self.reference_free and (special or self.loss not in RELATIVE):
            what = changed if special else f"loss = '{self.loss}'"
            raise ValueError(f"{what} measures a distance from the reference, so reference_free has no meaning")
        return self


class DPO(Comparing):
    """The paper's loss on pairs, and its relatives by name."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.choice = "best_worst" if config.online else "all"
        self.needs = Needs(
            engine=config.online,
            group_size=2,
            ref_logprobs=not config.reference_free,
            collision=config.weighting == "wpo",
            streams={},
            separable=False,
            whole_groups=True,
            data="preferences",
        )
        self.start = float(self.per_pair(equal_pair())) if config.weighting == "none" else None
        """The preference loss where policy equals reference, if nothing weighs it: ln 2 for DPO."""

    def per_pair(self, pairs: Pairs) -> Tensor:
        """The loss of each pair, [P]."""
        config = self.config
        if config.divergence != "reverse_kl":
            return f_dpo(pairs, divergence=config.divergence, beta=config.beta, alpha=config.divergence_alpha)
        if config.penalty:
            return dpo_positive(pairs, beta=config.beta, penalty=config.penalty)
        return named_loss(pairs, config.loss, beta=config.beta, flip=config.flip, smoothing=config.smoothing)

    def loss(self, batch: TokenBatch, logprobs: Tensor, entropy: Tensor | None, values: Tensor | None) -> Loss:
        """Mean over the step's pairs of the named loss and, with its factor, of the chosen answer's likelihood."""
        config = self.config
        answers = find_answers(batch, logprobs, reference=not config.reference_free)
        if config.reference_free:
            answers = replace(answers, ref_logprobs=torch.zeros_like(logprobs))
        pairs = build_pairs(answers, choice=self.choice, length_alpha=config.length_alpha)
        weight = self.pair_weight(batch, pairs)
        losses = self.per_pair(pairs)
        if config.weighting == "wpo":
            assert batch.log_collision is not None
            rows = (answers.rows, answers.count, *find_pairs(answers, self.choice))
            losses = losses * wpo_weights(answers.logprobs, *rows, log_collision=answers.ordered(batch.log_collision))
        parts = {"preference": weight * losses.sum()}
        if config.nll_coefficient:
            nll = chosen_nll(pairs, config.nll_normaliser, **self.pair_totals(batch, pairs))
            parts["nll"] = config.nll_coefficient * weight * nll.sum()
        return make_loss(parts, pair_stats(pairs, beta=config.beta), logprobs)
