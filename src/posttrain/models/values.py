"""One number per token from a hidden state: the critic's value head, a reward model's score head, and their trunks.

A value is read where the token's own logits are (`Microbatch.sources`), so V_t is the value of the state BEFORE token
t. `read_behind` makes a row whose values are read at given places themselves: the state after a row's last token (the
bootstrap of a rollout that a limit cut off), a reward model's score, a step's verdict.

The head begins at zero: every value is 0 at first and no draw is spent. It lies beside the trunk's weights as
``value_head.safetensors``, so a folder with backbone and head is an ordinary model folder with one file more.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from posttrain import config
from posttrain.errors import ConfigError, ModelError
from posttrain.models.load import Loaded, load_model
from posttrain.models.rows import RowTensors
from posttrain.models.scoring import Scorer, causal_model
from posttrain.models.selftest import Support, supported_layouts
from posttrain.models.storage import MODEL, load_weights, save_weights
from posttrain.types import Sample

HEAD_FILE = "value_head.safetensors"
"""Name of the head's file inside a model folder."""
CRITIC = "critic"
"""Folder of a critic with a trunk of its own inside a checkpoint."""


class ValueHead(torch.nn.Module):
    """hidden [N, width] to values [N], in float32 or wider."""

    def __init__(self, width: int, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, 1, dtype=torch.promote_types(dtype, torch.float32), device=device)
        torch.nn.init.zeros_(self.linear.weight)
        torch.nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return one value per hidden state."""
        values: torch.Tensor = self.linear(hidden.to(self.linear.weight.dtype)).squeeze(-1)
        return values

    def save(self, folder: Path) -> None:
        """Write the head into a model folder."""
        save_file(
            {name: tensor.detach().contiguous() for name, tensor in self.state_dict().items()}, folder / HEAD_FILE
        )

    def load(self, folder: Path) -> None:
        """Take over a model folder's head; raises ModelError if there is none or it has another width."""
        try:
            found = load_file(folder / HEAD_FILE)
            fits = {name: tuple(tensor.shape) for name, tensor in found.items()} == {
                name: tuple(tensor.shape) for name, tensor in self.state_dict().items()
            }
            if not fits:
                raise ValueError(f"shapes {[tuple(t.shape) for t in found.values()]}")
        except (OSError, ValueError, SafetensorError) as error:
            raise ModelError(
                f"{folder / HEAD_FILE} is not a head of this model: {error}. Give a folder that a reward model or a "
                "critic was saved to"
            ) from error
        self.load_state_dict(found)


class Critic:
    """A value head and, unless it sits on the policy's trunk, a model of its own."""

    def __init__(
        self, policy: Any, *, own: Any | None = None, learning_rate: float = 1e-5, warmup_steps: int = 0
    ) -> None:
        """``own`` is None for a head on the policy's trunk; ``warmup_steps`` optimizer steps leave the policy alone."""
        trunk = causal_model(policy if own is None else own)
        weight = next(trunk.parameters())
        self.own = own
        self.learning_rate, self.warmup_steps = learning_rate, warmup_steps
        self.head = ValueHead(trunk.config.get_text_config().hidden_size, dtype=weight.dtype, device=weight.device)
        self.module = torch.nn.ModuleDict({"head": self.head} | ({} if own is None else {"model": own}))
        """What is the critic's own; the optimizer's parameters."""
        self.support: Support | None = None
        self._scorer: Scorer | None = None
        if own is not None:
            own.eval()
            self.support = supported_layouts(own)
            implementation = self.support.implementation
            self._scorer = Scorer(model=causal_model(own), head=self.support.head, implementation=implementation)

    def values(self, rows: RowTensors, hidden: torch.Tensor | None = None) -> torch.Tensor:
        """Return the values [N] of the rows' trained tokens; a shared trunk's ``hidden`` [N, width] must be given."""
        if self._scorer is not None:
            hidden = self._scorer.hidden(rows, rows.plan)
        if hidden is None:
            raise ValueError("a critic on the policy's trunk reads the policy's hidden states; none were given")
        return self.head(hidden)  # type: ignore[no-any-return]

    def save(self, folder: Path) -> None:
        """Write head and trunk into a checkpoint; a shared trunk's model must be there already."""
        if self.own is not None:
            save_weights(self.own, folder / CRITIC)
        self.head.save(self._place(folder))

    def load(self, folder: Path) -> None:
        """Take over what `save` wrote, bit for bit."""
        if self.own is not None:
            load_weights(self.own, folder / CRITIC)
        self.head.load(self._place(folder))

    def _place(self, folder: Path) -> Path:
        return (folder if self.own is None else folder / CRITIC) / MODEL


def build_critic(settings: config.Critic, policy: Loaded, *, model: config.Model, seed: int, updates: int) -> Critic:
    """Return the critic that a recipe asks for, before adapters are put on the policy.

    ``model`` is the policy's section (device and number type are taken from it), ``updates`` the optimizer steps of a
    batch. A folder's own head is taken over. Raises ConfigError if the critic's tokenizer is another one.
    """
    options: dict[str, Any] = {
        "learning_rate": settings.learning_rate,
        "warmup_steps": settings.warmup_batches * updates,
    }
    if settings.path == "policy":
        own = None if settings.shared else copy.deepcopy(policy.model).requires_grad_(True)
        critic = Critic(policy.model, own=own, **options)
        place = Path(getattr(policy.model, "name_or_path", "") or "")
    else:
        loaded = load_model(model.model_copy(update={"path": settings.path, "lora": None}), seed=seed)
        if loaded.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
            raise ConfigError(
                f"critic.path '{settings.path}' has another vocabulary than the policy, so it cannot read its tokens. "
                'Give a model with the policy\'s tokenizer, or path = "policy"'
            )
        critic = Critic(policy.model, own=loaded.model, **options)
        place = Path(getattr(loaded.model, "name_or_path", "") or "")
    if (place / HEAD_FILE).is_file():
        critic.head.load(place)
    return critic


def read_behind(sample: Sample, places: Sequence[int] | np.ndarray) -> Sample:
    """Return the sample as a row whose values are read at ``places`` (row indices) themselves.

    What trains is the token behind each place; behind the row's last token stands one more, which nothing computes.
    Raises ValueError for a place outside the row.
    """
    behind = np.asarray(places, dtype=np.int64)
    if len(behind) and (behind.min() < 0 or behind.max() >= len(sample)):
        raise ValueError(f"places {behind.tolist()} lie outside a row of {len(sample)} tokens")
    mask = np.zeros(len(sample) + 1, bool)
    mask[behind + 1] = True
    arrays = ("old_logprobs", "ref_logprobs", "teacher_logprobs", "values", "returns", "mismatch")
    known = {name: getattr(sample, name) for name in arrays}
    longer: dict[str, Any] = {name: np.append(array, np.nan) for name, array in known.items() if array is not None}
    return replace(
        sample,
        ids=np.append(sample.ids, 0),
        loss_mask=mask,
        advantages=np.zeros(len(mask)),
        rollout_logprobs=np.full(len(mask), np.nan),
        versions=np.append(sample.versions, -1),
        turns=np.append(sample.turns, -1),
        token_weight={name: np.append(weight, 0.0) for name, weight in sample.token_weight.items()},
        **longer,
    )


def last_trained(sample: Sample) -> int:
    """Row index of the last trained token; raises ValueError if none trains, for then there is no score."""
    trained = np.flatnonzero(sample.loss_mask)
    if not len(trained):
        raise ValueError(
            f"row of group {sample.group}, rollout {sample.rollout} has no sampled token to read a score at"
        )
    return int(trained[-1])


def read_last(samples: Sequence[Sample]) -> list[Sample]:
    """Each rollout's row with its score read at its last trained token; its earlier segments train nothing."""
    last = {(sample.group, sample.rollout): place for place, sample in enumerate(samples) if sample.loss_mask.any()}
    return [
        read_behind(sample, [last_trained(sample)] if last.get((sample.group, sample.rollout)) == place else [])
        for place, sample in enumerate(samples)
    ]


def read_labelled(sample: Sample) -> Sample:
    """The row with its scores read where it trains and ``advantages`` hold a label, not NaN; the labels move along."""
    places = np.flatnonzero(sample.loss_mask & ~np.isnan(sample.advantages))
    moved = read_behind(sample, places)
    labels = np.full(len(moved), np.nan)
    labels[places + 1] = sample.advantages[places]
    return replace(moved, advantages=labels)
