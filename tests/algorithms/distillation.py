"""The golden student and teacher as a learner hands them to an algorithm: divergences and log-probabilities."""

import torch

from posttrain.functional.masked import flatten, row_count
from posttrain.functional.reduce import token_weights
from posttrain.types import TokenBatch
from tests.golden.fixtures import f64, golden

FACTS = golden("distill")
STUDENT, TEACHER = f64(FACTS["student_logits"]), f64(FACTS["teacher_logits"])
MASK = f64(FACTS["mask"]).bool()
TOKENS = torch.tensor(FACTS["tokens"])[MASK]
ROWS = flatten(MASK)[0]
OWN, OTHER = STUDENT[MASK], TEACHER[MASK]
"""Logits [5, 5] at the trained tokens."""


def facts(key: str) -> torch.Tensor:
    """A golden value per token, at the trained tokens."""
    return f64(FACTS[key])[MASK]


def distilled(algorithm, *, student=None, teacher=None, rows=(0, 1), advantages=None, old=None):
    """(loss, logits with gradient, log-probabilities) of the algorithm on these rows of the golden batch."""
    where = torch.isin(ROWS, torch.tensor(rows))
    logits = (OWN if student is None else student)[where].clone().requires_grad_()
    target = (OTHER if teacher is None else teacher)[where]
    picked = TOKENS[where, None]
    logprobs = logits.log_softmax(-1).gather(1, picked)[:, 0]
    logprobs.retain_grad()
    needs = algorithm.needs
    batch = TokenBatch(
        samples=torch.unique(ROWS[where], return_inverse=True)[1],
        sample_count=len(rows),
        advantages=torch.zeros(int(where.sum()), dtype=torch.float64) if advantages is None else advantages[where],
        token_weight={
            part: token_weights(mode, row_count(ROWS, 2))[ROWS][where] for part, mode in needs.streams.items()
        },
        teacher_logprobs=target.log_softmax(-1).gather(1, picked)[:, 0] if needs.teacher_logprobs else None,
        divergence=needs.divergence(logits, target) if needs.divergence else None,
        old_logprobs=None if old is None else old[where],
    )
    return algorithm.loss(batch, logprobs, None, None), logits, logprobs


def slope(loss, leaf: torch.Tensor) -> torch.Tensor:
    """Gradient of the loss by a leaf or a kept result."""
    (found,) = torch.autograd.grad(loss.total, leaf)
    return found
