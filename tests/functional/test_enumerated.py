"""Statements about expected gradients, by enumerating every rollout of a tiny policy."""

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from posttrain.functional import groups, returns
from posttrain.functional.kl import k2
from posttrain.functional.surrogates import reinforce
from tests.golden.fixtures import f64

LOGITS, REFERENCE = f64([0.3, -0.7, 0.2]), f64([-0.5, 0.4, 0.9])
ROW = torch.zeros(2, dtype=torch.int64)


def logprobs_of(logits: Tensor, first: int, second: int) -> Tensor:
    """Log-probabilities [2] of two binary tokens; the second token's logit depends on the first."""
    signs = f64([2 * first - 1, 2 * second - 1])
    return torch.nn.functional.logsigmoid(signs * torch.stack([logits[0], logits[1 + first]]))


def rollouts(logits: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """(probability, detached; log-probabilities [2]; reference's [2]) of the four rollouts."""
    for pair in itertools.product((0, 1), repeat=2):
        logprobs = logprobs_of(logits, *pair)
        yield logprobs.sum().exp().detach(), logprobs, logprobs_of(REFERENCE, *pair)


def expected(loss) -> list[float]:
    """Gradient of the expected loss, the sampling probabilities held fixed."""
    logits = LOGITS.clone().requires_grad_()
    torch.stack([p * loss(x, ref) for p, x, ref in rollouts(logits)]).sum().backward()
    return logits.grad.tolist()


def sequence_kl() -> list[float]:
    """Gradient of KL(policy || reference) over whole rollouts."""
    logits = LOGITS.clone().requires_grad_()
    torch.stack([x.sum().exp() * (x - ref).sum() for _, x, ref in rollouts(logits)]).sum().backward()
    return logits.grad.tolist()


def kl_in_reward(logprobs: Tensor, ref: Tensor) -> Tensor:
    rewards = returns.with_kl(torch.zeros(2).double(), logprobs, ref, 1.0)
    return reinforce(logprobs, returns.returns_to_go(rewards, ROW, 1)).sum()


def test_kl_in_the_reward_with_return_to_go_is_the_gradient_of_the_sequence_kl():
    assert sequence_kl() == pytest.approx(expected(kl_in_reward), abs=1e-12)


def test_kl_in_the_loss_misses_what_a_token_does_to_later_states():
    assert sequence_kl() != pytest.approx(expected(lambda x, ref: k2(x, ref).sum()), abs=1e-3)


def group_gradient(estimate, size: int) -> list[float]:
    """Policy gradient of one binary token, the reward, expected over every group of ``size``, per rollout."""
    logit = f64([0.4]).requires_grad_()
    total = torch.zeros(()).double()
    for tokens in itertools.product((0, 1), repeat=size):
        x = torch.nn.functional.logsigmoid((2 * f64(tokens) - 1) * logit)
        total = total + x.sum().exp().detach() * reinforce(x, estimate(f64(tokens))).mean()
    total.backward()
    return logit.grad.tolist()


def pass_rate_gradient() -> float:
    p = torch.sigmoid(f64(0.4))
    return -float(p * (1 - p))


@pytest.mark.parametrize("size", [2, 3, 5])
def test_leave_one_out_is_unbiased(size):
    assert [pass_rate_gradient()] == pytest.approx(group_gradient(groups.leave_one_out, size), abs=1e-12)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_group_mean_shrinks_the_gradient_by_one_rollout(size):
    expected_value = pass_rate_gradient() * (size - 1) / size
    assert [expected_value] == pytest.approx(group_gradient(groups.centred, size), abs=1e-12)


def test_the_group_deviation_makes_hard_and_easy_tasks_weigh_more():
    shrunk = pass_rate_gradient() * 4 / 5
    assert abs(group_gradient(groups.standardised, 5)[0]) > abs(shrunk)


def test_mean_scaled_approaches_the_gradient_of_the_log_pass_rate():
    target = -float(1 - torch.sigmoid(f64(0.4)))
    errors = [abs(group_gradient(lambda r: groups.mean_scaled(r, epsilon=0), n)[0] - target) for n in (2, 4, 8)]
    assert errors == sorted(errors, reverse=True)
