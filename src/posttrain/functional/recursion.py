"""The one backward recursion behind returns, GAE and their turn-level kin, over sampled tokens only.

    out_t = terms_t + factors_t * out_next,    next: the following sampled token of the same row, 0 after the last

Tool and padding tokens do not exist here, so nothing decays while the environment speaks.
"""

from __future__ import annotations

import torch
from torch import Tensor


def backward_sum(terms: Tensor, factors: Tensor | float, samples: Tensor, count: int) -> Tensor:
    """Run the recursion for ``terms`` [N] and ``factors`` [N] or a number; return [N], all rows at once.

    ``samples`` int64 [N] ascending from 0 to at most ``count`` - 1. The factor of a row's last token is not read.
    """
    result = terms.detach().clone()
    if not len(terms):
        return result
    scale = torch.as_tensor(factors, dtype=terms.dtype, device=terms.device).expand_as(terms)
    lengths = torch.bincount(samples, minlength=count)
    ends = lengths.cumsum(0)
    for back in range(1, int(lengths.max())):
        places = (ends - 1 - back)[lengths > back]
        result[places] = terms[places] + scale[places] * result[places + 1]
    return result


def following(values: Tensor, samples: Tensor, at_end: Tensor | float = 0.0) -> Tensor:
    """``values`` [N] of the next sampled token of the same row; ``at_end``, [count] or a number, after the last."""
    shifted = torch.roll(values, -1)
    ending = torch.as_tensor(at_end, dtype=values.dtype, device=values.device)
    beyond = ending[samples] if ending.ndim else ending.expand_as(values)
    return torch.where(last_of_row(samples), beyond, shifted)


def last_of_row(labels: Tensor) -> Tensor:
    """True where the next entry of ``labels`` [N] differs or there is none, bool [N]."""
    if not len(labels):
        return labels.bool()
    return torch.cat([labels[1:] != labels[:-1], labels.new_ones(1, dtype=torch.bool)])


def first_of_row(labels: Tensor) -> Tensor:
    """True where the previous entry of ``labels`` [N] differs or there is none, bool [N]."""
    return last_of_row(labels.flip(0)).flip(0)


def turn_spans(samples: Tensor, turns: Tensor) -> tuple[Tensor, Tensor]:
    """Number every turn of every row: (span of each token int64 [N], row of each span int64 [K]).

    A turn is a run of equal (row, turn) pairs; turns are given, never guessed from rewards or gaps.
    """
    starts = first_of_row(samples) | first_of_row(turns)
    return starts.cumsum(0) - 1, samples[starts]
