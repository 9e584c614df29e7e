"""The plan's attention equals dense masked attention, keeps no tokens x tokens tensor and refuses what it cannot do."""

import pytest
import torch
from torch.nn import functional as F
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from posttrain.models import attention
from posttrain.models.attention import NAME, BlockPlan, UnsupportedAttention, attention_forward, kernel_available, use
from posttrain.models.masked_attention import attend_masked, causal_mask
from posttrain.types import Block
from tests.tiny_models import build_tiny


def block(start, prefix, *lengths):
    """A block at ``start`` whose branches follow the prefix."""
    ends = [start + prefix]
    for length in lengths:
        ends.append(ends[-1] + length)
    branches = tuple(zip(ends[:-1], lengths, strict=True))
    return Block(prefix_start=start, prefix_length=prefix, branches=branches)


CASES = {
    "one sample": [block(0, 0, 7)],
    "packed ragged": [block(0, 0, 40), block(40, 0, 1), block(41, 0, 6), block(47, 0, 39)],
    "equal branches": [block(0, 9, 4, 4, 4)],
    "ragged branches": [block(0, 9, 30, 13, 12, 2, 1, 1)],
    "several groups": [block(0, 5, 4, 4), block(13, 5, 4, 4), block(26, 3, 20, 1), block(50, 0, 6)],
    "groups of one shape at odd distances": [block(0, 5, 4, 4), block(13, 0, 2), block(15, 5, 3, 5), block(28, 5, 8)],
    "empty branches": [block(0, 5, 3, 0, 0), block(8, 4, 0)],
    "prefix alone": [block(0, 6)],
}


def dense_mask(blocks, window=None):
    """The tokens x tokens mask that the library never builds."""
    width = max([sum(x) for b in blocks for x in b.branches] + [b.prefix_start + b.prefix_length for b in blocks])
    allowed = torch.zeros(width, width, dtype=torch.bool)
    for b in blocks:
        prefix = list(range(b.prefix_start, b.prefix_start + b.prefix_length))
        for own in [[], *(list(range(start, start + length)) for start, length in b.branches)]:
            path = prefix + own
            for i, query in enumerate(path):
                allowed[query, path[max(0, i + 1 - (window or len(path))) : i + 1]] = True
    return allowed


def inputs(width, heads=4, groups=2, size=8, value_size=None, dtype=torch.float64):
    """Query, key, value as views of [tokens, heads, size] memory, the way projections give them."""
    shapes = [(heads, size), (groups, size), (groups, value_size or size)]
    tensors = [torch.randn(1, width, *shape, dtype=dtype) for shape in shapes]
    return [x.transpose(1, 2).detach().requires_grad_() for x in tensors]


def run(function, tensors):
    """Output and gradients under a fixed random direction."""
    out = function(*tensors)
    torch.manual_seed(1)
    return [out.detach(), *torch.autograd.grad(out, tensors, torch.randn(out.shape, dtype=out.dtype))]


def dense(blocks, scaling, window=None):
    mask = dense_mask(blocks, window)
    return lambda q, k, v: F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, scale=scaling, enable_gqa=True
    ).transpose(1, 2)


def assert_equal(expected, actual, tolerance=1e-11):
    for one, other in zip(expected, actual, strict=True):
        assert one.shape == other.shape
        assert float((one - other).abs().max()) < tolerance


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("name", CASES)
def test_plan_equals_dense_attention(name, groups):
    plan = BlockPlan(CASES[name])
    tensors = inputs(plan.width, groups=groups)
    actual = run(lambda q, k, v: plan.attend(None, q, k, v, 0.3), tensors)
    assert_equal(run(dense(CASES[name], 0.3), tensors), actual)


@pytest.mark.parametrize("name", CASES)
def test_plan_equals_dense_attention_in_float32(name):
    plan = BlockPlan(CASES[name])
    tensors = inputs(plan.width, dtype=torch.float32)
    actual = run(lambda q, k, v: plan.attend(None, q, k, v, 0.3), tensors)
    assert_equal(run(dense(CASES[name], 0.3), tensors), actual, tolerance=1e-5)


@pytest.mark.parametrize("window", [None, 1, 5, 1000])
@pytest.mark.parametrize("name", CASES)
def test_window_equals_dense_attention(name, window):
    plan = BlockPlan(CASES[name])
    tensors = inputs(plan.width)
    actual = run(lambda q, k, v: plan.attend(None, q, k, v, 0.3, window=window), tensors)
    assert_equal(run(dense(CASES[name], 0.3, window), tensors), actual)


@pytest.mark.parametrize("name", CASES)
def test_masked_route_equals_dense_attention(name):
    plan = BlockPlan(CASES[name])
    tensors = inputs(plan.width)
    actual = run(lambda q, k, v: attend_masked(plan.blocks, q, k, v, 0.3, window=None, device="cpu"), tensors)
    assert_equal(run(dense(CASES[name], 0.3), tensors), actual)


@pytest.mark.parametrize("name", CASES)
def test_values_of_another_size_than_the_keys(name):
    plan = BlockPlan(CASES[name])
    tensors = inputs(plan.width, value_size=6)
    actual = run(lambda q, k, v: plan.attend(None, q, k, v, 0.3), tensors)
    assert_equal(run(dense(CASES[name], 0.3), tensors), actual)


def test_without_the_kernel_the_masked_route_is_taken(monkeypatch):
    monkeypatch.setattr(attention, "kernel_available", lambda device: False)
    plan = BlockPlan(CASES["several groups"])
    tensors = inputs(plan.width)
    actual = run(lambda q, k, v: plan.attend(None, q, k, v, 0.3), tensors)
    assert_equal(run(dense(CASES["several groups"], 0.3), tensors), actual)


def test_kernel_is_looked_for_on_cpu_only():
    assert kernel_available("cpu")
    assert not kernel_available("cuda")


def test_large_scores_do_not_overflow_when_parts_merge():
    plan = BlockPlan(CASES["ragged branches"])
    tensors = [(x.detach() * 60).requires_grad_() for x in inputs(plan.width)]
    actual = run(lambda q, k, v: plan.attend(None, q, k, v, 1.0), tensors)
    assert_equal(run(dense(CASES["ragged branches"], 1.0), tensors), actual, tolerance=1e-7)


def test_nothing_of_size_tokens_times_tokens_is_saved():
    plan = BlockPlan([block(0, 300, 100, 100, 100)])
    query, key, value = inputs(plan.width)
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
        plan.attend(None, query, key, value, 0.3)
    assert sum(sizes) <= 3 * query.numel() + plan.width * 4


def test_a_gap_between_blocks_is_refused():
    with pytest.raises(ValueError, match="gap or overlap at token 4"):
        BlockPlan([block(0, 0, 4), block(5, 0, 2)])


def test_overlapping_blocks_are_refused():
    with pytest.raises(ValueError, match="overlap"):
        BlockPlan([block(0, 0, 4), block(3, 0, 2)])


def test_scattered_branches_are_refused():
    first = Block(prefix_start=0, prefix_length=2, branches=((2, 2), (6, 2)))
    with pytest.raises(ValueError, match="behind each other"):
        BlockPlan([first, block(4, 0, 2)])


def test_a_plan_for_another_row_is_refused():
    with pytest.raises(ValueError, match="covers 1 row of 7 tokens"):
        BlockPlan([block(0, 0, 7)]).attend(None, *inputs(8), 0.3)


def test_without_plan_rows_are_plainly_causal():
    query, key, value = inputs(9)
    out, weights = attention_forward(torch.nn.Module(), query, key, value, None, scaling=0.3)
    expected = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=0.3, enable_gqa=True)
    assert weights is None
    torch.testing.assert_close(expected.transpose(1, 2), out)


def test_without_plan_a_short_window_masks():
    query, key, value = inputs(9)
    out, _ = attention_forward(torch.nn.Module(), query, key, value, None, scaling=0.3, sliding_window=3)
    torch.testing.assert_close(dense([block(0, 0, 9)], 0.3, window=3)(query, key, value), out)


def test_scale_defaults_to_the_root_of_the_head_size():
    query, key, value = inputs(5, size=16)
    expected, _ = attention_forward(torch.nn.Module(), query, key, value, None, scaling=0.25)
    torch.testing.assert_close(expected, attention_forward(torch.nn.Module(), query, key, value)[0])


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ({"softcap": 50.0}, "softcap"),
        ({"s_aux": torch.zeros(4)}, "s_aux"),
        ({"position_bias": torch.zeros(1)}, "position_bias"),
        ({"dropout": 0.1}, "dropout"),
        ({"is_causal": False}, "causal order"),
        ({"attention_mask": torch.zeros(1)}, "mask or cache"),
    ],
)
def test_more_than_a_causal_product_is_refused(asked, word):
    with pytest.raises(UnsupportedAttention, match=word):
        attention_forward(torch.nn.Module(), *inputs(4), **asked)


def test_a_cache_is_refused():
    query, key, value = inputs(4)
    with pytest.raises(UnsupportedAttention, match="cache"):
        attention_forward(torch.nn.Module(), query[:, :, :1], key, value)


def test_transformers_knows_the_name():
    assert attention_forward is AttentionInterface()[NAME]
    assert AttentionMaskInterface()[NAME](batch_size=1) is None


def test_use_sets_the_implementation_once(monkeypatch):
    model = build_tiny()
    use(model, NAME)
    assert model.config._attn_implementation == NAME
    monkeypatch.setattr(model, "set_attn_implementation", lambda name: pytest.fail("set again"))
    use(model, NAME)


def test_causal_mask_places_queries_behind_the_prefix():
    assert [[True, True, False], [True, True, True]] == causal_mask(2, 1).tolist()


def test_causal_mask_with_window():
    assert [[False, True, False], [False, False, True]] == causal_mask(2, 1, window=1).tolist()
