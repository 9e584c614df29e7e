"""One token row of a rollout, built as the model saw it: context and completions appended, nothing re-tokenised."""

from __future__ import annotations

import math
from collections.abc import Sequence

from posttrain.types import Completion, Segment

_NAN = math.nan


class SegmentBuilder:
    """Gathers the ids of one row with what is known of each token."""

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        """Begin with the context before the first turn of the row."""
        self._prompt_length = len(prompt_ids)
        self._ids: list[int] = []
        self._loss_mask: list[bool] = []
        self._rollout_logprobs: list[float] = []
        self._versions: list[int] = []
        self._turns: list[int] = []
        self.append_context(prompt_ids)

    @property
    def ids(self) -> tuple[int, ...]:
        """All ids so far: the next prompt begins with them."""
        return tuple(self._ids)

    def append_context(self, ids: Sequence[int]) -> None:
        """Add tokens that the policy did not sample."""
        count = len(ids)
        self._ids.extend(ids)
        self._loss_mask.extend([False] * count)
        self._rollout_logprobs.extend([_NAN] * count)
        self._versions.extend([-1] * count)
        self._turns.extend([-1] * count)

    def append_completion(self, completion: Completion, turn: int) -> None:
        """Add what the policy sampled in a turn; raise ValueError if its per-token numbers do not fit its ids."""
        check_completion(completion)
        self._ids.extend(completion.ids)
        self._loss_mask.extend([True] * len(completion.ids))
        self._rollout_logprobs.extend(completion.rollout_logprobs)
        self._versions.extend(completion.versions)
        self._turns.extend([turn] * len(completion.ids))

    def extend_to(self, ids: Sequence[int]) -> None:
        """Add the context by which ``ids`` is longer than the row; raise ValueError if it is not an extension."""
        length = len(self._ids)
        if list(ids[:length]) != self._ids:
            raise ValueError(
                f"the next prompt ({len(ids)} ids) does not begin with the {length} ids of the row: sampled tokens "
                "would be rewritten. The bridge must return an extension or None."
            )
        self.append_context(ids[length:])

    def build(self) -> Segment:
        """Return the row."""
        return Segment(
            ids=self.ids,
            loss_mask=tuple(self._loss_mask),
            rollout_logprobs=tuple(self._rollout_logprobs),
            versions=tuple(self._versions),
            turns=tuple(self._turns),
            prompt_length=self._prompt_length,
        )


def check_completion(completion: Completion) -> None:
    """Raise ValueError unless a completion has one finite log-probability and one version per id."""
    counts = (len(completion.ids), len(completion.rollout_logprobs), len(completion.versions))
    if len(set(counts)) != 1:
        raise ValueError(
            f"completion has {counts[0]} ids, {counts[1]} rollout_logprobs and {counts[2]} versions; expected one each"
        )
    if not all(map(math.isfinite, completion.rollout_logprobs)):
        raise ValueError("completion has a rollout_logprob that is not finite: the engine sampled from broken logits")
