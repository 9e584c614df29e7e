"""For an engine that holds the learner's own tensors: carries only the version, and proves that they are the same.

Nothing is moved. The digest is over names, shapes, a strided sample of the bytes and an integer sum of all the bits of
each tensor, so it costs one pass over the weights and does not depend on threads.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import Any

import torch
from pydantic import Field

from posttrain.config import Settings
from posttrain.errors import ModelError
from posttrain.protocols import Engine, Learner, NamedTensors
from posttrain.types import Receipt

__all__ = ["Alias", "Config"]

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Config(Settings):
    """How the weights are fingerprinted."""

    digest: bool = True
    """Compute a digest of the weights at each sync; without it the receipt's digest is empty."""
    sample: int = Field(64, gt=0)
    """Values of each tensor that enter the digest one by one."""


class Alias:
    """Checks that every engine aliases the learner's tensors, and tells it the new version."""

    def __init__(self, config: Config) -> None:
        self._config = config

    async def carry(self, learner: Learner, engines: Sequence[Engine], version: int) -> Receipt:
        """Make every engine sample with the learner's weights under this version.

        Raises ModelError if an engine does not hold the learner's tensors, or did not take over the version.
        """
        started = time.perf_counter()
        tensors = list(learner.named_tensors())
        for engine in engines:
            _require_alias(engine, tensors)
            await engine.load(tensors, version)
            if engine.version != version:
                raise ModelError(
                    f"{type(engine).__name__} is at version {engine.version} after loading version {version}: "
                    "its load() does not take over the weights it is given."
                )
        digest = weight_digest(tensors, self._config.sample) if self._config.digest else ""
        return Receipt(version=version, digest=digest, seconds=time.perf_counter() - started, size=0)


def _require_alias(engine: Engine, tensors: list[tuple[str, torch.Tensor]]) -> None:
    aliases: Any = getattr(engine, "aliases", None)
    if aliases is None:
        raise ModelError(
            f"{type(engine).__name__} cannot hold the learner's tensors: it has no aliases(). "
            "weight_sync 'alias' is for the local engine; choose one that copies weights."
        )
    if not aliases(tensors):
        raise ModelError(
            f"{type(engine).__name__} does not hold the learner's tensors: it would go on sampling with other weights. "
            "Build learner and engine on one model object, or choose a weight sync that copies."
        )


@torch.no_grad()
def weight_digest(tensors: NamedTensors, sample: int = 64) -> str:
    """Hex digest of named tensors: equal for equal weights, whatever the device and number of threads."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in tensors:
        words = tensor.detach().contiguous().view(-1).view(_WORDS[tensor.element_size()])
        total = words.sum(dtype=torch.int64)
        chosen = words[:: max(1, len(words) // sample)]
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} {int(total)} ".encode())
        digest.update(chosen.cpu().numpy().tobytes())
    return digest.hexdigest()
