"""What an algorithm asks of whoever assembles, samples, anchors and packs for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """What an algorithm must be given."""

    engine: bool = True
    """It trains on rollouts sampled now (False: on demonstrations or stored groups)."""
    group_size: int = 1
    """The fewest rollouts per group that make sense."""
    ref_logprobs: bool = False
    """Log-probabilities of a frozen reference."""
    teacher_logprobs: bool = False
    """Log-probabilities of a teacher."""
    aligned_teacher: bool = False
    """That teacher may have another tokenizer: it scores spans of text, and tokens in none of them are NaN."""
    divergence: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None
    """Student's and teacher's tempered logits [n, V] to a divergence per token, [n]; None asks for none."""
    on_policy: float = 1.0
    """Share of batches that are sampled now; the others imitate the tasks' demonstrations."""
    values: bool = False
    """A critic's values."""
    scores: bool = False
    """The values are scores of the model that trains: a score head on its own trunk, and no policy (reward models)."""
    entropy: bool = False
    """The entropy of each trained position with gradient."""
    collision: bool = False
    """The log-probability, at each trained position, that two draws from the policy agree (WPO)."""
    groups: int = 1
    """The fewest groups per optimizer batch that make sense."""
    streams: Mapping[str, str] = field(default_factory=lambda: {"policy": "token-mean"})
    """Reduction of each loss part's weight stream (see functional.reduce)."""
    separable: bool = True
    """Each token's loss depends only on that token's numbers, so the head may work tile by tile."""
    old_logprobs: bool = False
    """Log-probabilities from the start of the update, even if the batch is one optimizer step."""
    whole_groups: bool = False
    """The loss compares rows of one group: a group lies in one microbatch."""
    data: Literal["demonstrations", "preferences", "rankings", "labels", "steps"] = "demonstrations"
    """What an offline algorithm reads from disk; ``labels`` are single answers called good or bad."""
    greedy: bool = False
    """Each group gets one more rollout at temperature 0, which is scored but does not train."""
    refill: int = 0
    """How often a batch that ``keep`` has thinned is filled up with new groups, at most."""

    @property
    def demonstrated(self) -> bool:
        """True if its tasks bring an answer to imitate along."""
        return not self.engine or self.on_policy < 1

    @property
    def rewarded(self) -> bool:
        """True if what it samples must be scored: a teacher's word alone needs no reward."""
        return self.engine and "policy" in self.streams
