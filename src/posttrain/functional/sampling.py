"""Drawing tokens: the distribution really sampled from, its log-probabilities, and the draw by inverse CDF.

Order of the filters: forbidden ids, temperature, top-k, top-p (on what top-k left, renormalised), min-p. Temperature 0
is greedy: the distribution is one on the most probable token (the lowest id among equals), so its log-probability is 0.
Every parameter is a number for all rows or a tensor [B] with one per row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

Parameter = float | Tensor
"""One number for all rows, or a tensor [B]."""

_BLOCK = 256
_SMALL = 512
_CANDIDATES = 512


def processed_logprobs(
    logits: Tensor,
    temperature: Parameter = 1.0,
    top_p: Parameter = 1.0,
    top_k: Parameter = 0,
    min_p: Parameter = 0.0,
    *,
    forbidden: Sequence[int] = (),
) -> Tensor:
    """Return [B, V] natural-log probabilities of the distribution really sampled; dropped tokens are -inf.

    ``logits`` is [B, V]; half precision is raised to float32. Raises ValueError for NaN or infinite logits (-inf for
    single tokens is allowed and means probability zero).
    """
    logits = _allowed(logits, forbidden)
    _finite_maximum(logits)
    logprobs = _filtered(torch.log_softmax(_scale_(logits.clone(), temperature), dim=-1), top_p, top_k, min_p)
    greedy = _greedy_rows(temperature, len(logits), logits.device)
    if greedy is None:
        return logprobs
    certain = torch.full_like(logprobs, -math.inf).scatter_(1, logits.argmax(-1, keepdim=True), 0.0)
    return torch.where(greedy.unsqueeze(1), certain, logprobs)


def draw(logprobs: Tensor, uniforms: Tensor) -> Tensor:
    """Return int64 [B] ids drawn from [B, V] log-probabilities by inverse CDF at float64 ``uniforms`` [B] in (0, 1).

    Never returns a token whose probability is zero, however close to one the uniform number is.
    """
    return _pick(logprobs.exp(), uniforms)[0]


def sample(
    logits: Tensor,
    uniforms: Tensor,
    *,
    temperature: Parameter = 1.0,
    top_p: Parameter = 1.0,
    top_k: Parameter = 0,
    min_p: Parameter = 0.0,
    forbidden: Sequence[int] = (),
) -> tuple[Tensor, Tensor]:
    """Draw one token per row: int64 ids [B] and float64 log-probabilities [B] under the distribution really sampled.

    The same as ``draw(processed_logprobs(logits, ...), uniforms)``; where nothing is filtered it neither sorts nor
    normalises the whole row. ``logits`` is [B, V] and is left as it was. Raises ValueError for NaN or infinite logits.
    """
    if _any(top_p, lambda value: value < 1) or _any(top_k, lambda value: value > 0) or _any(min_p, lambda v: v > 0):
        logprobs = processed_logprobs(logits, temperature, top_p, top_k, min_p, forbidden=forbidden)
        ids = draw(logprobs, uniforms)
        return ids, logprobs.gather(1, ids.unsqueeze(1)).squeeze(1).double()
    logits = _allowed(logits, forbidden)
    if not isinstance(temperature, Tensor) and temperature == 0:
        _finite_maximum(logits)
        return logits.argmax(-1), uniforms.new_zeros(len(logits))
    ids, chosen = _draw_unfiltered(logits, uniforms, temperature)
    greedy = _greedy_rows(temperature, len(logits), logits.device)
    if greedy is None:
        return ids, chosen
    return torch.where(greedy, logits.argmax(-1), ids), chosen.masked_fill(greedy, 0.0)


def _draw_unfiltered(logits: Tensor, uniforms: Tensor, temperature: Parameter) -> tuple[Tensor, Tensor]:
    """Draw from softmax(logits / temperature) with one exponential pass; log-probability only of the drawn token."""
    maximum = _finite_maximum(logits)
    weights = _scale_(logits - maximum, temperature).exp_()
    ids, total = _pick(weights, uniforms)
    chosen = _scale_(logits.gather(1, ids.unsqueeze(1)).double() - maximum.double(), temperature)
    return ids, (chosen - total.log()).squeeze(1)


def _pick(weights: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Inverse CDF over unnormalised weights [B, V]: ids [B] and the rows' float64 totals [B, 1].

    For a large V it works in two levels, so that only one block per row is accumulated in float64.
    """
    width = weights.shape[1]
    if width <= _SMALL:
        ids, _, total = _first_above(weights, uniforms.unsqueeze(1), relative=True)
        return ids, total
    whole = width // _BLOCK * _BLOCK
    sums = weights[:, :whole].reshape(len(weights), -1, _BLOCK).sum(-1).double()
    sums = torch.cat([sums, weights[:, whole:].sum(-1, keepdim=True, dtype=torch.float64)], dim=1)
    block, rest, total = _first_above(sums, uniforms.unsqueeze(1), relative=True)
    columns = block.unsqueeze(1) * _BLOCK + torch.arange(_BLOCK, device=weights.device)
    inside = weights.gather(1, columns.clamp(max=width - 1)).masked_fill(columns >= width, 0.0)
    return block * _BLOCK + _first_above(inside, rest, relative=False)[0], total


def _first_above(weights: Tensor, target: Tensor, *, relative: bool) -> tuple[Tensor, Tensor, Tensor]:
    """First place [B] whose running sum exceeds the target [B, 1], the target's rest in it, and the total [B, 1].

    Such a place has a positive weight. Where rounding lets the target reach the total, it is the last positive place.
    """
    running = weights.cumsum(-1, dtype=torch.float64)
    total = running[:, -1:]
    target = target * total if relative else target
    place = torch.minimum((running <= target).sum(-1), (running < total).sum(-1))
    before = running.gather(1, (place - 1).clamp(min=0).unsqueeze(1)).masked_fill_((place == 0).unsqueeze(1), 0.0)
    return place, (target - before).clamp_(min=0.0), total


def _allowed(logits: Tensor, forbidden: Sequence[int]) -> Tensor:
    """Logits in at least float32, with forbidden ids at -inf."""
    if logits.dtype not in (torch.float32, torch.float64):
        logits = logits.float()
    if not forbidden:
        return logits
    return logits.index_fill(1, torch.tensor(list(forbidden), device=logits.device), -math.inf)


def _finite_maximum(logits: Tensor) -> Tensor:
    """Row maximum [B, 1]; raises if a row holds NaN or +inf, or nothing but -inf."""
    maximum = logits.amax(-1, keepdim=True)
    if not bool(torch.isfinite(maximum).all()):
        rows = (~torch.isfinite(maximum)).nonzero()[:, 0].tolist()
        raise ValueError(
            f"logits of rows {rows[:8]} are not finite (maximum {maximum[rows[0], 0].item()}): the model's weights or "
            "activations overflowed. Look for NaN in the weights, or compute in float32."
        )
    return maximum


def _scale_(values: Tensor, temperature: Parameter) -> Tensor:
    """Divide values [B, V] by the temperature, in place; greedy rows stay as they are."""
    if isinstance(temperature, Tensor):
        divisor = torch.where(temperature > 0, temperature, torch.ones_like(temperature))
        return values.div_(divisor.to(values.dtype).unsqueeze(1))
    return values if temperature in (0, 1) else values.div_(temperature)


def _greedy_rows(temperature: Parameter, rows: int, device: torch.device) -> Tensor | None:
    """Bool [B] of rows with temperature 0; None if there are none."""
    if isinstance(temperature, Tensor):
        greedy = temperature == 0
        return greedy if bool(greedy.any()) else None
    return torch.ones(rows, dtype=torch.bool, device=device) if temperature == 0 else None


def _any(parameter: Parameter, test: object) -> bool:
    """True if the test holds for a row."""
    assert callable(test)
    verdict = test(parameter)
    return bool(verdict.any()) if isinstance(verdict, Tensor) else bool(verdict)


def _column(parameter: Parameter, like: Tensor) -> Tensor:
    """The parameter as float64 [B, 1] or [1, 1]."""
    return torch.as_tensor(parameter, dtype=torch.float64, device=like.device).reshape(-1, 1)


def _filtered(logprobs: Tensor, top_p: Parameter, top_k: Parameter, min_p: Parameter) -> Tensor:
    """Drop what top-k, top-p and min-p drop, and normalise the rest."""
    nucleus, ranks = _column(top_p, logprobs), _column(top_k, logprobs)
    keep = torch.ones_like(logprobs, dtype=torch.bool)
    if bool((nucleus < 1).any()) or bool((ranks > 0).any()):
        keep = _within_nucleus(logprobs, nucleus, ranks)
    floor = _column(min_p, logprobs)
    if bool((floor > 0).any()):
        keep &= logprobs.double() >= logprobs.amax(-1, keepdim=True).double() + floor.log()
    elif bool(keep.all()):
        return logprobs
    return torch.log_softmax(logprobs.masked_fill(~keep, -math.inf), dim=-1)


def _within_nucleus(logprobs: Tensor, nucleus: Tensor, ranks: Tensor) -> Tensor:
    """Bool [B, V]: the ``ranks`` most probable tokens, and of these the smallest set that reaches ``nucleus``.

    Only the most probable tokens are ordered; all of them where these do not decide every row.
    """
    width = logprobs.shape[1]
    ranks = ranks.masked_fill(ranks <= 0, width)
    for count in (min(_CANDIDATES, width), width):
        values, order = _most_probable(logprobs, count)
        mass = values.double().exp().masked_fill(torch.arange(count, device=logprobs.device) >= ranks, 0.0)
        kept_total = mass.sum(-1, keepdim=True)
        covered = (ranks <= count) | ((nucleus < 1) & (kept_total >= nucleus))
        if count == width or bool(covered.all()):
            break
    # A row cut by top-k is normalised over what is left; the others are normalised already.
    mass = torch.where(ranks < width, mass / kept_total, mass)
    before = mass.cumsum(-1) - mass
    kept = (mass > 0) & ((before < nucleus) | (nucleus >= 1))
    return torch.zeros_like(logprobs, dtype=torch.bool).scatter_(1, order, kept)


def _most_probable(logprobs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` greatest values of each row and their ids, descending; equals in the order of their ids."""
    if count == logprobs.shape[1]:
        values, order = logprobs.sort(dim=-1, descending=True, stable=True)
        return values, order
    ids = logprobs.topk(count, dim=-1).indices.sort(dim=-1).values
    values, place = logprobs.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, place)
