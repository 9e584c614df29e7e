"""Staleness and admission."""

import pytest
import torch

from posttrain.functional.staleness import free_slots, proximal, staleness
from tests.golden.fixtures import new, roll


def test_the_oldest_token_counts():
    assert [3, 0, 1] == staleness(torch.tensor([5, 2, 4]), torch.tensor([0, 0, 2]), 3, 5).tolist()


def test_bound_zero_is_synchronous():
    room = {"concurrent": 100, "running": 0, "bound": 0, "batch": 4}
    assert (4, 0, 4) == tuple(free_slots(accepted=a, version=v, **room) for a, v in ((0, 0), (4, 0), (4, 1)))


def test_concurrency_bounds_too():
    assert 2 == free_slots(concurrent=5, running=3, accepted=0, bound=8, version=0, batch=64)


@pytest.mark.parametrize(("version", "expected"), [(3, roll), (7, new)])
def test_proximal_meets_both_ends(version, expected):
    actual = proximal(roll, new, rollout_version=3, proximal_version=version, version=7)
    assert expected.tolist() == pytest.approx(actual.tolist(), abs=1e-12)


def test_proximal_of_fresh_samples_is_the_rollouts():
    assert roll.tolist() == proximal(roll, new, rollout_version=7, proximal_version=7, version=7).tolist()


def test_proximal_is_detached():
    leaf = new.clone().requires_grad_()
    assert not proximal(roll, leaf, rollout_version=3, proximal_version=6, version=7).requires_grad
