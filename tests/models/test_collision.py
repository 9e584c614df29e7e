"""The collision probability is that of the full softmax, whatever the tile, the softcap and the temperature."""

import pytest
import torch

from posttrain.models.collision import tiled_collision
from posttrain.models.heads import Head

HIDDEN = torch.randn(7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def module():
    torch.manual_seed(1)
    return torch.nn.Linear(5, 11, bias=False, dtype=torch.float64)


@pytest.mark.parametrize("tile_bytes", [1, 11 * 8 * 3, 1 << 20])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_it_is_the_sum_of_squared_probabilities(module, tile_bytes, temperature):
    head = Head(module=module, weight=module.weight, scale=1.3, softcap=4.0)
    logits = torch.tanh(module(HIDDEN) * 1.3 / 4.0) * 4.0 / temperature
    expected = logits.softmax(-1).square().sum(-1).log()
    found = tiled_collision(HIDDEN, head, temperature=temperature, tile_bytes=tile_bytes)
    assert torch.allclose(expected, found, atol=1e-12)


def test_greedy_counts_as_temperature_one(module):
    head = Head(module=module, weight=module.weight)
    assert torch.equal(tiled_collision(HIDDEN, head), tiled_collision(HIDDEN, head, temperature=0.0))


def test_it_has_no_gradient(module):
    found = tiled_collision(HIDDEN.clone().requires_grad_(), Head(module=module, weight=module.weight))
    assert not found.requires_grad


def test_nothing_gives_nothing(module):
    assert 0 == len(tiled_collision(HIDDEN[:0], Head(module=module, weight=module.weight)))
