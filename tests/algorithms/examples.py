"""Groups and token batches made of the golden fixture F1, for tests of algorithms."""

from collections.abc import Mapping, Sequence

import torch

from posttrain.functional.masked import row_count
from posttrain.functional.reduce import token_weights
from posttrain.types import Ending, Group, Loss, Rollout, Segment, Task, TokenBatch
from tests.golden import fixtures as f1

TASK = Task(id="t", messages=({"role": "user", "content": "?"},))


def rollout(index: int, reward: float | None, tokens: int = 2) -> Rollout:
    """A rollout with one prompt token and ``tokens`` sampled ones."""
    segment = Segment(
        ids=tuple(range(1 + tokens)),
        loss_mask=(False, *(True for _ in range(tokens))),
        rollout_logprobs=(float("nan"), *(-1.0 for _ in range(tokens))),
        versions=(-1, *(0 for _ in range(tokens))),
        turns=(-1, *(0 for _ in range(tokens))),
        prompt_length=1,
    )
    return Rollout(
        task=TASK, index=index, seed=index, segments=(segment,), messages=(), text="", ending=Ending.STOP, reward=reward
    )


def group(rewards: Sequence[float | None], position: int = 0) -> Group:
    """A group with these rewards."""
    return Group(position=position, task=TASK, rollouts=tuple(rollout(i, r) for i, r in enumerate(rewards)))


def batch(rows: Sequence[int] = (0, 1, 2, 3), *, streams: Mapping[str, str], on_policy: bool = False) -> TokenBatch:
    """The tokens of these rows of F1; the weights are those of the whole of F1, as in a micro-batch of it."""
    where = torch.cat([torch.nonzero(f1.SAMPLES == row)[:, 0] for row in rows])
    numbers = torch.cat([torch.full((int(f1.COUNTS[row]),), i) for i, row in enumerate(rows)])
    weights = {part: token_weights(mode, f1.COUNTS, constant=5.0)[f1.SAMPLES[where]] for part, mode in streams.items()}
    return TokenBatch(
        samples=numbers,
        sample_count=len(rows),
        advantages=f1.A[where],
        token_weight=weights,
        old_logprobs=None if on_policy else f1.old[where],
        rollout_logprobs=f1.roll[where],
        ref_logprobs=f1.ref[where],
        turns=f1.TURNS[where],
    )


def logprobs(rows: Sequence[int] = (0, 1, 2, 3)) -> torch.Tensor:
    """The current policy's log-probabilities of these rows, a leaf with gradient."""
    where = torch.cat([torch.nonzero(f1.SAMPLES == row)[:, 0] for row in rows])
    return f1.new[where].clone().requires_grad_()


def value(loss: Loss) -> float:
    """The loss as a number."""
    return float(loss.total.detach())


def gradient(loss: Loss, leaf: torch.Tensor) -> list[float]:
    """Gradient of the loss by the leaf."""
    (result,) = torch.autograd.grad(loss.total, leaf)
    return result.tolist()


def empty(streams: Mapping[str, str]) -> TokenBatch:
    """A token batch of one sample without trained tokens."""
    none = torch.zeros(0, dtype=torch.float64)
    rows = torch.zeros(0, dtype=torch.int64)
    assert int(row_count(rows, 1)) == 0
    return TokenBatch(
        samples=rows,
        sample_count=1,
        advantages=none,
        token_weight=dict.fromkeys(streams, none),
        old_logprobs=none,
        rollout_logprobs=none,
        ref_logprobs=none,
    )
