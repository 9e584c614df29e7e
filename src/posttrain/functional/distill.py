"""Divergences between a student's and a teacher's next-token distributions, one number per token, [N].

With p = student, q = teacher at the same prefix:
forward_kl   sum_v q log(q / p)     knowledge distillation (arXiv 1503.02531); gradient by the logits p - q
reverse_kl   sum_v p log(p / q)     on-policy distillation (arXiv 2306.08543); gradient p (log(p / q) - KL)
jsd          beta KL(q || m) + (1 - beta) KL(p || m), m = beta q + (1 - beta) p    GKD (arXiv 2306.13649)
A token of probability 0 adds exactly 0 and no NaN. The teacher carries no gradient. Softmax runs in float32 or wider.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def log_softmax(logits: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Log-probabilities of ``logits`` [N, V] / temperature, in float32 or wider."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return torch.log_softmax(wide / temperature, dim=-1)


def kl(first: Tensor, second: Tensor) -> Tensor:
    """sum_v p log(p / q) of log-probabilities ``first`` (p) and ``second`` (q), [N, V]; [N].

    Infinite where p is positive and q zero. A place where p is zero is selected away before it is multiplied, so it
    gives no NaN in value or gradient.
    """
    held = first > -math.inf
    difference = torch.where(held, torch.where(held, first, 0.0) - second, 0.0)
    return (torch.where(held, first, -math.inf).exp() * difference).sum(dim=-1)


def forward_kl(student_logits: Tensor, teacher_logits: Tensor, *, temperature: float = 1.0) -> Tensor:
    """KL(teacher || student) of logits [N, V], [N]. Hinton et al., arXiv 1503.02531 section 2.

    Both logits are divided by ``temperature``; multiply by its square to keep the gradient's size, as the paper says.
    """
    student, teacher = _both(student_logits, teacher_logits, temperature)
    return kl(teacher, student)


def reverse_kl(student_logits: Tensor, teacher_logits: Tensor, *, temperature: float = 1.0) -> Tensor:
    """KL(student || teacher) over the full vocabulary of logits [N, V], [N]. MiniLLM, arXiv 2306.08543."""
    student, teacher = _both(student_logits, teacher_logits, temperature)
    return kl(student, teacher)


def jsd(
    student_logits: Tensor,
    teacher_logits: Tensor,
    *,
    beta: float = 0.5,
    temperature: float = 1.0,
    continuous: bool = False,
) -> Tensor:
    """Generalised Jensen-Shannon divergence of logits [N, V], [N]. GKD, arXiv 2306.13649.

    beta 0 is the forward, 1 the reverse KL BY DEFINITION: the formula itself falls to 0 at both ends, so the loss
    jumps there. ``continuous`` divides the formula by beta (1 - beta), which joins both ends smoothly (beta 1/2 is
    then four times the usual value). Raises ValueError outside [0, 1].
    """
    if not 0 <= beta <= 1:
        raise ValueError(f"beta must lie between 0 (forward KL) and 1 (reverse KL), got {beta}")
    student, teacher = _both(student_logits, teacher_logits, temperature)
    if beta in (0.0, 1.0):
        return kl(teacher, student) if beta == 0.0 else kl(student, teacher)
    # A token impossible on both sides would give logaddexp a NaN gradient; it adds nothing, so hold it finite.
    lowest = torch.finfo(student.dtype).min / 2
    parts = teacher.clamp(min=lowest) + math.log(beta), student.clamp(min=lowest) + math.log1p(-beta)
    mixture = torch.logaddexp(*parts)
    value = beta * kl(teacher, mixture) + (1 - beta) * kl(student, mixture)
    return value / (beta * (1 - beta)) if continuous else value


def entropy(logprobs: Tensor) -> Tensor:
    """-sum_v p log p of log-probabilities [N, V], [N]: cross-entropy with a teacher minus its entropy is forward KL."""
    return -kl(logprobs, torch.zeros_like(logprobs))


def geometric_mixture(teachers: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The one teacher that several weighted ones amount to: (log-probabilities [N, V], constant [N]).

    For log-probabilities ``teachers`` [M, N, V] and ``weights`` [M] that sum to one,
    sum_i w_i KL(p || q_i) = KL(p || g) + constant with g proportional to prod_i q_i^w_i. Fine where teachers agree,
    a blur where they don't: route tasks to teachers instead. Raises ValueError if the weights don't sum to one.
    """
    if not math.isclose(float(weights.sum()), 1.0, abs_tol=1e-6):
        raise ValueError(f"teacher weights must sum to 1, got {weights.tolist()}")
    blended = torch.einsum("m,mnv->nv", weights.to(teachers.dtype), teachers)
    normaliser = torch.logsumexp(blended, dim=-1)
    return blended - normaliser[:, None], -normaliser


def _both(student_logits: Tensor, teacher_logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    if student_logits.shape != teacher_logits.shape:
        shapes = f"{tuple(student_logits.shape)} and {tuple(teacher_logits.shape)}"
        raise ValueError(f"student and teacher must share one vocabulary and the same tokens, got logits {shapes}")
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    student = log_softmax(student_logits, temperature=temperature)
    return student, log_softmax(teacher_logits.detach(), temperature=temperature)
