"""Counter-based uniform numbers: the draw for a place depends only on (seed, position), never on what came before.

``word(seed, position) = mix(mix(seed + g) + (position + 1) g)`` in 64-bit wrapping arithmetic, with splitmix64's
finaliser ``mix`` and increment ``g`` (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
The second stage alone is splitmix64's own sequence from a mixed seed, so neighbouring seeds share nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _signed(word: int) -> int:
    """The int64 with the bits of an unsigned 64-bit word."""
    return word - (1 << 64) if word >= 1 << 63 else word


_INCREMENT = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)
_FRACTION_BITS = 52


def _shift_right(word: Tensor, bits: int) -> Tensor:
    """Shift without the sign: torch's own shift of a negative int64 fills with ones."""
    return (word >> bits) & ((1 << (64 - bits)) - 1)


def mix64(word: Tensor) -> Tensor:
    """Scramble int64 words of any shape, one to one: splitmix64's finaliser in wrapping arithmetic."""
    word = (word ^ _shift_right(word, 30)) * _FIRST
    word = (word ^ _shift_right(word, 27)) * _SECOND
    return word ^ _shift_right(word, 31)


def uniform(seed: Tensor, position: Tensor) -> Tensor:
    """Return float64 draws strictly between 0 and 1, one per (seed, position).

    ``seed`` and ``position`` are int64 and broadcast against each other, for example [B] and [B]. The result is the
    same on every device and whatever else is drawn. The 52 high bits of the word, moved by half a step, keep
    both 0 and 1 out of reach.
    """
    if seed.dtype != torch.int64 or position.dtype != torch.int64:
        raise TypeError(f"seed and position must be int64; got {seed.dtype} and {position.dtype}")
    word = mix64(mix64(seed + _INCREMENT) + (position + 1) * _INCREMENT)
    return (_shift_right(word, 64 - _FRACTION_BITS).double() + 0.5) * 2.0**-_FRACTION_BITS
