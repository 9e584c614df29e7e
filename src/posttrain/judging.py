"""What rewards by trained reward models share: which tokens of a rollout are read, and by whom.

A model reads the rollout's own token ids up to the last sampled one, as the policy saw them: nothing is tokenised
again, and a cut-off answer is judged as cut off. That needs the policy's tokenizer, which is proved on the first
rollout of each call: the reward model's tokenizer must read its last completion as the same text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from posttrain.config import Settings
from posttrain.errors import ConfigError
from posttrain.models.judge import Judge, load_judge, require_judge
from posttrain.types import Rollout


class JudgeSettings(Settings):
    """Where a trained reward model runs."""

    device: str = "auto"
    """cpu, cuda, mps, or auto."""
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Number type of its weights."""
    tokens_per_batch: int = Field(16384, gt=0)
    """Token places scored at once."""


class Panel:
    """One or several reward models on the same rollouts."""

    def __init__(self, paths: Sequence[str], settings: JudgeSettings, name: str) -> None:
        """Find the folders; no weight is read before the first score. Raises ConfigError for a path that is none."""
        self._folders = [require_judge(path) for path in paths]
        self._settings, self._name = settings, name

    async def scores(self, rollouts: Sequence[Rollout]) -> list[list[float]]:
        """Each model's score of each rollout, [models][rollouts]; the event loop goes on while they read.

        Models are loaded here and not in a thread: loading changes settings of the whole process for a moment.
        """
        settings = self._settings
        judges = [load_judge(folder, settings.device, settings.dtype) for folder in self._folders]
        for judge, folder in zip(judges, self._folders, strict=True):
            for rollout in rollouts[:1]:
                refuse_other_tokens(judge, rollout, f"reward '{self._name}', model {folder}")
        rows = [sampled_row(rollout) for rollout in rollouts]
        return await asyncio.to_thread(
            lambda: [judge.scores(rows, token_budget=settings.tokens_per_batch) for judge in judges]
        )


def sampled_row(rollout: Rollout) -> tuple[int, ...]:
    """The ids of the last segment up to its last sampled token."""
    segment = rollout.segments[-1]
    last = max((place for place, sampled in enumerate(segment.loss_mask) if sampled), default=-1)
    return segment.ids[: last + 1]


def refuse_other_tokens(judge: Judge, rollout: Rollout, who: str) -> None:
    """Raise ConfigError if the judge's tokenizer reads the rollout's last completion as another text."""
    segment = rollout.segments[-1]
    last = max(segment.turns, default=-1)
    ids = [token for token, turn in zip(segment.ids, segment.turns, strict=True) if turn == last >= 0]
    size = len(judge.tokenizer)
    if any(token >= size for token in ids) or _text(judge, ids) != rollout.text:
        raise ConfigError(
            f"{who} reads other tokens than the policy writes: it must have the policy's tokenizer. Train the reward "
            "model from the policy or from a model of its family"
        )


def _text(judge: Judge, ids: Sequence[int]) -> str:
    return str(judge.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))
