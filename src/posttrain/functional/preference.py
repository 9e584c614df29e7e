"""Pairs of a chosen and a rejected answer: summed log-probabilities, token counts, weights and metrics.

Every pair loss of preference_pairs and preference_free reads a `Pairs` and returns one number per pair, [P]; the
caller weighs them with 1 / (pairs of the whole step). Sums run in float64: in float32 a sum near -2000 is only known
to 1e-4, as large as the first gaps of a run. LD-DPO: arXiv 2409.06411; WPO: arXiv 2406.11827 eq. 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from posttrain.functional.masked import row_count, row_mean, row_sum


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pairs:
    """P pairs of answers to the same prompt."""

    chosen: Tensor
    """[P]: summed log-probability of the chosen answer's tokens, stop token included."""
    rejected: Tensor
    """[P]: the same of the rejected answer."""
    chosen_count: Tensor
    """int64 [P]: tokens of the chosen answer."""
    rejected_count: Tensor
    """int64 [P]: tokens of the rejected answer."""
    ref_chosen: Tensor | None = None
    """[P], detached: the reference's sum; None for losses without a reference."""
    ref_rejected: Tensor | None = None
    """[P], detached."""

    @property
    def chosen_log_ratio(self) -> Tensor:
        """log pi(chosen) - log ref(chosen), [P]; raises ValueError without a reference."""
        return self.chosen - _present(self.ref_chosen)

    @property
    def rejected_log_ratio(self) -> Tensor:
        """log pi(rejected) - log ref(rejected), [P]; raises ValueError without a reference."""
        return self.rejected - _present(self.ref_rejected)

    @property
    def gap(self) -> Tensor:
        """Chosen log ratio minus rejected log ratio, [P]: beta times it is DPO's implicit reward margin."""
        return self.chosen_log_ratio - self.rejected_log_ratio

    @property
    def average_gap(self) -> Tensor:
        """The gap of log ratios per token, each divided by its own answer's token count, [P]."""
        chosen = self.chosen_log_ratio / _divisor(self.chosen_count)
        return chosen - self.rejected_log_ratio / _divisor(self.rejected_count)

    @property
    def chosen_average(self) -> Tensor:
        """Mean log-probability of the chosen answer's tokens, [P]."""
        return self.chosen / _divisor(self.chosen_count)

    @property
    def rejected_average(self) -> Tensor:
        """Mean log-probability of the rejected answer's tokens, [P]."""
        return self.rejected / _divisor(self.rejected_count)


def sequence_logprobs(logprobs: Tensor, samples: Tensor, count: int) -> Tensor:
    """Sum the token ``logprobs`` [N] of each row, float64 [count]."""
    return row_sum(logprobs.double(), samples, count)


def make_pairs(
    logprobs: Tensor,
    samples: Tensor,
    count: int,
    chosen: Tensor,
    rejected: Tensor,
    *,
    ref_logprobs: Tensor | None = None,
    length_alpha: float = 1.0,
) -> Pairs:
    """Build pairs from token ``logprobs`` [N] and the row numbers ``chosen`` and ``rejected``, int64 [P].

    A row may stand in several pairs (one chosen with many rejected). ``length_alpha`` below 1 is LD-DPO: tokens past
    the shorter answer's length count only that much. ``samples`` must be ascending.
    """
    counts = row_count(samples, count)
    shared = torch.minimum(counts[chosen], counts[rejected])
    sides = {"": logprobs} if ref_logprobs is None else {"": logprobs, "ref_": ref_logprobs.detach()}
    sums = {
        f"{prefix}{name}": desensitised_logprobs(values, samples, count, rows, shared, alpha=length_alpha)
        for prefix, values in sides.items()
        for name, rows in (("chosen", chosen), ("rejected", rejected))
    }
    return Pairs(chosen_count=counts[chosen], rejected_count=counts[rejected], **sums)


def desensitised_logprobs(
    logprobs: Tensor, samples: Tensor, count: int, rows: Tensor, shared: Tensor, *, alpha: float
) -> Tensor:
    """Sum of the first ``shared`` tokens of each of ``rows`` plus ``alpha`` times the rest, float64 [P].

    LD-DPO, arXiv 2409.06411, with ``shared`` int64 [P] the shorter answer's length; alpha 1 is the plain sum.
    Raises ValueError if ``samples`` is not ascending, because then a row has no first token.
    """
    totals = sequence_logprobs(logprobs, samples, count)[rows]
    if alpha == 1.0:
        return totals
    if bool((samples[1:] < samples[:-1]).any()):
        raise ValueError("samples must be ascending (row after row) to know which tokens come first")
    counts = row_count(samples, count)
    starts = (counts.cumsum(0) - counts)[rows]
    running = torch.cat([totals.new_zeros(1), logprobs.double().cumsum(0)])
    head = running[starts + torch.minimum(shared, counts[rows])] - running[starts]
    return head + alpha * (totals - head)


def wpo_weights(
    logprobs: Tensor, samples: Tensor, count: int, chosen: Tensor, rejected: Tensor, *, log_collision: Tensor
) -> Tensor:
    """Weight of each pair by how likely the policy itself would write both answers, detached, [P], at most 1.

    WPO, arXiv 2406.11827 eq. 2 with its sampled alignment: exp(mean_t (log pi(token) - log sum_v pi(v)^2)) of both
    answers multiplied. ``log_collision`` [N] is log sum_v pi(v)^2 at each token (see `log_collision`).
    """
    aligned = row_mean((logprobs - log_collision).detach().double(), samples, count)
    return (aligned[chosen] + aligned[rejected]).exp().clamp(max=1.0)


def log_collision(logits: Tensor) -> Tensor:
    """log sum_v p(v)^2 of ``logits`` [N, V], [N]: the expected probability of a token that p itself draws."""
    return torch.logsumexp(2 * torch.log_softmax(logits, dim=-1), dim=-1)


def pair_metrics(pairs: Pairs, *, beta: float) -> dict[str, Tensor]:
    """Numbers to watch, one per pair, each detached [P].

    Rewards are beta times the log ratio to the reference (times the log-probability where there is none). Accuracy
    is strict: a tie, as at the start where policy equals reference, counts 0 and is shown by ``tie``. Watch
    ``chosen_logprob``: margins may grow while both answers become less likely.
    """
    free = pairs.ref_chosen is None
    chosen = beta * (pairs.chosen if free else pairs.chosen_log_ratio).detach()
    rejected = beta * (pairs.rejected if free else pairs.rejected_log_ratio).detach()
    return {
        "chosen_logprob": pairs.chosen.detach(),
        "rejected_logprob": pairs.rejected.detach(),
        "chosen_reward": chosen,
        "rejected_reward": rejected,
        "margin": chosen - rejected,
        "accuracy": (chosen > rejected).double(),
        "tie": (chosen == rejected).double(),
        "token_gap": (pairs.chosen_count - pairs.rejected_count).double(),
    }


def _present(reference: Tensor | None) -> Tensor:
    if reference is None:
        raise ValueError("this loss compares with a reference, and the pairs carry none; pass ref_logprobs")
    return reference


def _divisor(counts: Tensor) -> Tensor:
    """Token counts to divide by; an empty answer has sum 0 and average 0."""
    return counts.clamp(min=1).double()
