"""Attention parts: equal to plain softmax attention, and mergeable by their log-sum-exp."""

import pytest
import torch
from torch.nn import functional as F

from posttrain.models.attend import Options, attention, causal_attention, hidden_bias


def tensors(*shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(len(shape))
    return [torch.randn(*shape, generator=generator, dtype=dtype) for _ in range(3)]


def by_definition(query, key, value, hidden, options):
    scores = options.scaling * query @ key.transpose(-1, -2)
    if options.softcap is not None:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    scores = scores.masked_fill(hidden, float("-inf"))
    return torch.softmax(scores, -1) @ value, scores.logsumexp(-1)


OPTIONS = [Options(scaling=0.4), Options(scaling=0.4, softcap=1.5)]


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "softcapped"])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_and_its_log_sum_exp_are_those_of_the_definition(options, masked):
    query, key, value = tensors(3, 2, 5, 8)
    hidden = torch.zeros(3, 1, 1, 5, dtype=torch.bool)
    hidden[1, ..., 3:] = masked
    out, total = attention(query, key, value, hidden_bias(hidden, query.dtype) if masked else None, options)
    expected, expected_total = by_definition(query, key, value, hidden, options)
    assert torch.allclose(expected, out, rtol=0, atol=1e-12)
    assert torch.allclose(expected_total, total.double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "softcapped"])
def test_two_parts_merge_to_the_whole(options):
    query, key, value = tensors(2, 2, 6, 8)
    whole, _ = attention(query, key, value, None, options)
    first, first_total = attention(query, key[:, :, :4], value[:, :, :4], None, options)
    second, second_total = attention(query, key[:, :, 4:], value[:, :, 4:], None, options)
    merged = torch.lerp(second, first, torch.sigmoid(first_total - second_total).unsqueeze(-1))
    assert torch.allclose(whole, merged, rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "softcapped"])
def test_a_part_that_is_wholly_hidden_weighs_nothing(options):
    query, key, value = tensors(1, 1, 4, 8)
    seen, seen_total = attention(query, key, value, None, options)
    bias = hidden_bias(torch.ones(1, 1, 1, 4, dtype=torch.bool), query.dtype)
    hidden, hidden_total = attention(query, key, value, bias, options)
    assert torch.equal(seen, torch.lerp(seen, hidden, torch.sigmoid(hidden_total - seen_total).unsqueeze(-1)))


@pytest.mark.parametrize("window", [None, 1, 3, 99])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_causal_attention_sees_itself_and_what_the_window_holds(window, softcap, kv_heads):
    length = 6
    query = tensors(2, 4, length, 8)[0]
    _, key, value = tensors(2, kv_heads, length, 8)
    options = Options(scaling=0.3, window=window, softcap=softcap)
    places = torch.arange(length)
    distance = places.unsqueeze(1) - places
    hidden = (distance < 0) | (distance >= (window or 99))
    repeats = 4 // kv_heads
    expected, _ = by_definition(
        query, key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1), hidden, options
    )
    assert torch.allclose(expected, causal_attention(query, key, value, options), rtol=0, atol=1e-12)


def test_float32_stays_close_to_torch_attention():
    query, key, value = tensors(2, 2, 7, 8, dtype=torch.float32)
    expected = F.scaled_dot_product_attention(query, key, value, scale=0.4)
    assert torch.allclose(expected, attention(query, key, value, None, Options(scaling=0.4))[0], rtol=0, atol=1e-6)
