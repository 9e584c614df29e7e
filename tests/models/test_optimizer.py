"""Schedules reach their marks, clipping keeps the direction, and the optimizer's state survives storage exactly."""

import math

import pytest
import torch

from posttrain.errors import RecordError
from posttrain.models.optimizer import (
    build_adamw,
    clip_gradients,
    global_norm,
    optimizer_tensors,
    restore_optimizer,
    scheduled_rate,
)
from tests.tiny_models import build_tiny

SETTINGS = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}


def rates(schedule, *, total=8, warmup=0):
    return [scheduled_rate(2.0, step, total=total, warmup=warmup, schedule=schedule) for step in range(total)]


def test_constant():
    assert [2.0] * 8 == rates("constant")


def test_warm_up_moves_in_its_first_step_and_ends_at_the_peak():
    assert [0.5, 1.0, 1.5, 2.0, 2.0] == rates("constant", warmup=4)[:5]


def test_linear_would_reach_zero_one_step_after_the_last():
    assert [2.0, 1.75, 1.5, 1.25, 1.0, 0.75, 0.5, 0.25] == rates("linear")


def test_linear_falls_after_the_warm_up():
    assert [1.0, 2.0, 2.0, 1.5, 1.0, 0.5] == rates("linear", total=6, warmup=2)


def test_cosine():
    assert pytest.approx([1 + math.cos(math.pi * step / 8) for step in range(8)]) == rates("cosine")


def test_beyond_the_end_the_rate_stays_at_zero():
    assert 0.0 == scheduled_rate(2.0, 50, total=8, warmup=0, schedule="linear")


def test_warm_up_longer_than_the_run():
    assert 1.0 == scheduled_rate(2.0, 4, total=5, warmup=10, schedule="cosine")


def test_global_norm_is_that_of_all_entries_together():
    assert 13.0 == global_norm([torch.tensor([3.0, 4.0]), torch.tensor([[12.0]])])


def test_global_norm_adds_in_float64():
    parts = [torch.full((1,), 1.0), *[torch.full((1,), 1e-5)] * 1000]
    assert pytest.approx(math.sqrt(1 + 1000 * float(parts[1]) ** 2), rel=1e-12) == global_norm(parts)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_global_norm_shows_what_is_not_finite(bad):
    assert not math.isfinite(global_norm([torch.ones(3), torch.tensor([bad])]))


def test_global_norm_of_nothing():
    assert 0.0 == global_norm([])


def test_clipping_scales_to_the_limit():
    gradients = [torch.tensor([3.0, 4.0]), torch.tensor([12.0])]
    clip_gradients(gradients, 13.0, 1.0)
    assert pytest.approx(1.0) == global_norm(gradients)
    assert pytest.approx(3 / 13) == float(gradients[0][0])


@pytest.mark.parametrize("limit", [None, 13.0, 20.0])
def test_clipping_leaves_what_is_within_the_limit(limit):
    gradients = [torch.tensor([3.0, 4.0]), torch.tensor([12.0])]
    clip_gradients(gradients, 13.0, limit)
    assert [[3.0, 4.0], [12.0]] == [g.tolist() for g in gradients]


def test_norms_biases_and_embeddings_do_not_decay():
    model = build_tiny("qwen2")
    groups = build_adamw(model, **(SETTINGS | {"weight_decay": 0.1})).param_groups
    names = {id(p): n for n, p in model.named_parameters()}
    decay = {names[id(p)]: group["weight_decay"] for group in groups for p in group["params"]}
    assert {0.0} == {v for n, v in decay.items() if "norm" in n or n.endswith("bias") or "embed" in n}
    assert {0.1} == {v for n, v in decay.items() if "proj.weight" in n}


def test_frozen_parameters_are_not_optimised():
    model = build_tiny()
    model.requires_grad_(False)
    model.model.norm.weight.requires_grad_(True)
    optimizer = build_adamw(model, **SETTINGS)
    assert [id(model.model.norm.weight)] == [id(p) for g in optimizer.param_groups for p in g["params"]]


def test_one_step_is_the_papers():
    layer = torch.nn.Linear(1, 1, bias=False).double()
    torch.nn.init.constant_(layer.weight, 2.0)
    optimizer = build_adamw(layer, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1)
    optimizer.param_groups[0]["lr"] = 0.5
    layer.weight.grad = torch.full((1, 1), 3.0, dtype=torch.float64)
    optimizer.step()
    assert pytest.approx(2.0 * (1 - 0.5 * 0.1) - 0.5 * 3.0 / (3.0 + 1e-8), rel=1e-12) == layer.weight.item()


def stepped():
    """A small layer after two steps, its optimizer and its names."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(3, 2)
    optimizer = build_adamw(layer, **SETTINGS)
    for _ in range(2):
        layer(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return layer, optimizer, {id(p): n for n, p in layer.named_parameters()}


def test_state_is_stored_by_parameter_name():
    _, optimizer, names = stepped()
    expected = {f"{n}/{k}" for n in ("weight", "bias") for k in ("step", "exp_avg", "exp_avg_sq")}
    assert expected == optimizer_tensors(optimizer, names).keys()


def test_restored_state_is_equal_bit_for_bit():
    _, optimizer, names = stepped()
    stored = {name: tensor.clone() for name, tensor in optimizer_tensors(optimizer, names).items()}
    other, fresh, other_names = stepped()
    fresh.state.clear()
    restore_optimizer(fresh, other_names, stored)
    assert all(torch.equal(stored[n], t) for n, t in optimizer_tensors(fresh, other_names).items())
    assert other.weight in fresh.state


def test_state_of_an_unknown_parameter_is_refused():
    _, optimizer, names = stepped()
    with pytest.raises(RecordError, match="'other/exp_avg'"):
        restore_optimizer(optimizer, names, {"other/exp_avg": torch.zeros(2)})


def test_state_of_another_shape_is_refused():
    _, optimizer, names = stepped()
    with pytest.raises(RecordError, match=r"'bias/exp_avg' \(7,\)"):
        restore_optimizer(optimizer, names, {"bias/exp_avg": torch.zeros(7)})
