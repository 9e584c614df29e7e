"""A trained reward model loaded from its folder: token rows in, one score each out.

The folder is what training leaves (a run, a checkpoint or its ``model/``): an ordinary model with a score head beside
it. A model is loaded once per process and only read afterwards; equal calls give equal bits.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch

from posttrain import config
from posttrain.errors import ConfigError, ModelError
from posttrain.models.layout import place_padded
from posttrain.models.load import Loaded, load_model
from posttrain.models.locate import resolve_model_path
from posttrain.models.rows import tensors
from posttrain.models.scoring import Scorer
from posttrain.models.selftest import supported_layouts
from posttrain.models.values import HEAD_FILE, ValueHead, read_behind
from posttrain.types import Sample


class Judge:
    """Scores rows of token ids at their last token."""

    def __init__(self, loaded: Loaded, folder: Path) -> None:
        self.tokenizer = loaded.tokenizer
        self.window = loaded.window
        support = supported_layouts(loaded.model)
        loaded.model.requires_grad_(False)
        weight = next(loaded.model.parameters())
        self._scorer = Scorer(model=loaded.model, head=support.head, implementation=support.implementation)
        width = loaded.model.config.get_text_config().hidden_size
        self._head = ValueHead(width, dtype=weight.dtype, device=weight.device).requires_grad_(False)
        self._head.load(folder)
        self._device = weight.device
        self._lock = threading.Lock()

    def scores(self, rows: Sequence[Sequence[int]], *, token_budget: int) -> list[float]:
        """Return each row's score, read at its last token; batches of at most ``token_budget`` places, long rows first.

        Raises ModelError for a row that is empty or longer than the window.
        """
        wrong = next((len(row) for row in rows if not 0 < len(row) <= self.window), None)
        if wrong is not None:
            raise ModelError(f"a row of {wrong} tokens cannot be scored: the reward model reads 1 to {self.window}")
        order = sorted(range(len(rows)), key=lambda place: (-len(rows[place]), place))
        found = [0.0] * len(rows)
        while order:
            count = max(1, min(len(order), token_budget // len(rows[order[0]])))
            part, order = order[:count], order[count:]
            for place, score in zip(part, self._read([rows[place] for place in part]), strict=True):
                found[place] = score
        return found

    def _read(self, rows: Sequence[Sequence[int]]) -> list[float]:
        batch = place_padded([read_behind(_row(ids), [len(ids) - 1]) for ids in rows])
        with self._lock, torch.no_grad():
            placed = tensors(batch, self._device)
            scores: list[float] = self._head(self._scorer.hidden(placed, placed.plan)).double().tolist()
        return scores


def require_judge(path: str) -> Path:
    """Return the folder of a trained reward model, reading no weight; raises ConfigError if it is none."""
    try:
        folder = resolve_model_path(path)
    except ModelError as error:
        raise ConfigError(f"reward model '{path}': {error}") from error
    if not (folder / HEAD_FILE).is_file():
        raise ConfigError(
            f"reward model '{path}': {folder} has no {HEAD_FILE}, so nothing was trained to score. Train one with "
            'algorithm.type = "reward_model" and give its run directory'
        )
    return folder


@cache
def load_judge(folder: Path, device: str, dtype: str) -> Judge:
    """Load a reward model; the same one again costs nothing."""
    settings = config.Model(path=str(folder), device=device, dtype=dtype)
    return Judge(load_model(settings, seed=0), folder)


def _row(ids: Sequence[int]) -> Sample:
    count = len(ids)
    return Sample(
        ids=np.asarray(ids, dtype=np.int64),
        loss_mask=np.zeros(count, bool),
        prompt_length=0,
        group=0,
        rollout=0,
        advantages=np.zeros(count),
        rollout_logprobs=np.full(count, np.nan),
        versions=np.full(count, -1),
        turns=np.full(count, -1),
    )
