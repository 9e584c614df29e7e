"""The PPO clip and its sides, against closed-form gradients at every sign and side of the clip."""

import pytest
import torch

from posttrain.functional.ratios import token_ratio
from posttrain.functional.surrogates import clip_sides, clipped
from tests.golden.fixtures import A, new, old

CLIP = {"clip_low": 0.2, "clip_high": 0.28}


def slope(ratio: float, advantage: float, **options) -> float:
    """Derivative of one token's loss by its log-probability."""
    logprob = torch.tensor([ratio], dtype=torch.float64).log().requires_grad_()
    loss = clipped(
        token_ratio(logprob, torch.zeros_like(logprob)), torch.tensor([advantage]).double(), **(CLIP | options)
    )
    loss.sum().backward()
    return float(logprob.grad)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.0, 1.0, -1.0),
        (1.0, -1.0, 1.0),
        (1.1, 2.0, -2.2),
        (1.3, 1.0, 0.0),
        (0.5, 1.0, -0.5),
        (0.7, -1.0, 0.0),
        (5.0, -1.0, 5.0),
        (1.5, 0.0, 0.0),
    ],
)
def test_gradient_is_minus_ratio_times_advantage_or_zero(ratio, advantage, expected):
    assert expected == pytest.approx(slope(ratio, advantage), abs=1e-12)


@pytest.mark.parametrize(("ratio", "expected"), [(5.0, 0.0), (2.0, 2.0), (0.5, 0.0)])
def test_dual_clip_stops_the_gradient_above_its_bound(ratio, expected):
    assert expected == pytest.approx(slope(ratio, -1.0, dual_clip=3.0), abs=1e-12)


def test_dual_clip_leaves_positive_advantages_alone():
    ratio, one = torch.tensor([5.0]), torch.tensor([1.0])
    assert clipped(ratio, one, **CLIP).tolist() == clipped(ratio, one, dual_clip=3.0, **CLIP).tolist()


def test_on_policy_gradient_is_reinforce():
    logprobs = new.clone().requires_grad_()
    clipped(token_ratio(logprobs, new), A, **CLIP).sum().backward()
    assert (-A).tolist() == pytest.approx(logprobs.grad.tolist(), abs=1e-12)


def test_on_policy_value_is_minus_the_advantage():
    assert (-A).tolist() == clipped(torch.ones_like(A), A, **CLIP).tolist()


def test_sides_count_only_where_the_sign_makes_the_clip_active():
    ratio = torch.tensor([0.5, 0.5, 2.0, 2.0, 1.0])
    advantage = torch.tensor([-1.0, 1.0, -1.0, 1.0, 1.0])
    low, high = clip_sides(ratio, advantage, **CLIP)
    assert [True, False, False, False, False] == low.tolist()
    assert [False, False, False, True, False] == high.tolist()


def test_sides_are_where_the_gradient_is_zero():
    logprobs = new.clone().requires_grad_()
    clipped(token_ratio(logprobs, old), A, **CLIP).sum().backward()
    low, high = clip_sides(token_ratio(new, old), A, **CLIP)
    assert (logprobs.grad == 0).tolist() == (low | high).tolist()


def test_no_clip_on_policy():
    low, high = clip_sides(torch.ones_like(A), A, **CLIP)
    assert 0 == int(low.sum() + high.sum())
