"""The critic's loss and explained variance."""

import math

import pytest
import torch

from posttrain.functional.critic import explained_variance, value_clip_active, value_loss
from tests.golden.fixtures import f64

OLD, NEW, TARGETS = f64([0.5, 0.2, -0.3]), f64([0.9, 0.1, 0.4]), f64([1.0, 0.0, -0.1])


def slope(**options) -> list[float]:
    values = NEW.clone().requires_grad_()
    value_loss(values, TARGETS, OLD, **options).sum().backward()
    return values.grad.tolist()


def test_plain_gradient_is_the_error():
    assert (NEW - TARGETS).tolist() == pytest.approx(slope(), abs=1e-12)


def test_clip_stops_the_gradient_where_it_is_active():
    active = value_clip_active(NEW, TARGETS, OLD, clip=0.2)
    expected = torch.where(active, 0.0, NEW - TARGETS)
    assert expected.tolist() == pytest.approx(slope(clip=0.2), abs=1e-12)


def test_a_wide_clip_is_no_clip():
    assert value_loss(NEW, TARGETS).tolist() == value_loss(NEW, TARGETS, OLD, clip=100.0).tolist()


def test_clip_without_old_values_is_refused():
    with pytest.raises(ValueError, match="old_values"):
        value_loss(NEW, TARGETS, clip=0.2)


def test_targets_have_no_gradient():
    targets = TARGETS.clone().requires_grad_()
    assert not value_loss(NEW, targets).requires_grad


def test_perfect_values_explain_everything():
    assert 1.0 == explained_variance(TARGETS, TARGETS)


def test_a_constant_explains_nothing():
    assert 0.0 == pytest.approx(explained_variance(torch.full_like(TARGETS, 3.0), TARGETS))


@pytest.mark.parametrize("targets", [f64([1.0, 1.0]), f64([1.0]), f64([])])
def test_nothing_to_explain_is_not_a_number(targets):
    assert math.isnan(explained_variance(targets, targets))
