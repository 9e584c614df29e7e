"""Deterministic order of tasks: one number, the position, says which task comes next and with which seeds.

Each epoch is a permutation of ``range(size)`` from (seed, epoch): a Feistel network over the smallest even
number of bits that holds the size, whose round function is a keyed hash, walked along its cycle until it lands
inside the range (Black and Rogaway 2002, "Ciphers with arbitrary finite domains"). Nothing is stored, so resume
needs the position only, and a group that is issued again is the same group.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

ROUNDS = 6
"""Feistel rounds; four are enough to look random on large domains, small ones want a few more."""


def stable_hash(*parts: int | str) -> int:
    """Return a 63-bit non-negative number that depends on the parts alone: same on every machine and version."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


@dataclass(frozen=True, slots=True)
class TaskOrder:
    """Which task stands at which position, epoch after epoch, and the seeds of its rollouts."""

    size: int
    """Number of tasks, at least 1."""
    seed: int
    """Seed of the order and of the rollouts."""

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"an order needs at least one task; got size {self.size}")

    def index(self, position: int) -> int:
        """Return the task index at a position from 0; every epoch of ``size`` positions holds each task once."""
        if position < 0:
            raise ValueError(f"position must be 0 or more; got {position}")
        epoch, place = divmod(position, self.size)
        return permute(place, self.size, (self.seed, epoch))

    def epoch(self, position: int) -> int:
        """Return how often every task was issued before this position."""
        return position // self.size

    def rollout_seed(self, position: int, index: int) -> int:
        """Return the 63-bit seed of the rollout with this index in the group at this position."""
        return rollout_seed(self.seed, position, index)


def rollout_seed(seed: int, position: int, index: int) -> int:
    """Return the 63-bit seed of one rollout of the group at a position: a hash, so neighbours share nothing."""
    return stable_hash("rollout", seed, position, index)


def permute(place: int, size: int, key: tuple[int, ...]) -> int:
    """Return the image of ``place`` under a permutation of ``range(size)`` chosen by ``key``; O(1) memory."""
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    value = place
    while True:
        value = _feistel(value, half, key)
        if value < size:
            return value


def _feistel(value: int, half: int, key: tuple[int, ...]) -> int:
    """Encipher a number of ``2 * half`` bits."""
    mask = (1 << half) - 1
    left, right = value >> half, value & mask
    for number in range(ROUNDS):
        left, right = right, left ^ (stable_hash("order", *key, number, right) & mask)
    return (left << half) | right
