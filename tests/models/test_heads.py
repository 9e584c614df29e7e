"""The tiled head equals the dense log-softmax in values and gradients, and keeps within its memory budget."""

import dataclasses

import pytest
import torch
import transformers

from posttrain.errors import ModelError
from posttrain.models.heads import Head, find_head, token_logprobs
from tests.tiny_models import SIZES, build_tiny

COUNT, VOCABULARY, SIZE = 23, 50, 6
ROW = VOCABULARY * 8


def build_head(*, bias=False, dtype=torch.float64, **fields):
    """A random head with logits of a few units."""
    module = torch.nn.Linear(SIZE, VOCABULARY, bias=bias).to(dtype)
    torch.nn.init.normal_(module.weight, std=1.5)
    return Head(module=module, weight=module.weight, bias=module.bias, **fields)


def build_inputs(dtype=torch.float64, count=COUNT):
    hidden = torch.randn(count, SIZE, dtype=dtype).requires_grad_()
    return hidden, torch.randint(VOCABULARY, (count,))


def dense(hidden, head, targets, temperature=1.0):
    """What the head means, written plainly."""
    logits = torch.nn.functional.linear(hidden, head.weight, head.bias) * head.scale
    if head.softcap is not None:
        logits = head.softcap * torch.tanh(logits / head.softcap)
    logs = torch.log_softmax(logits / (temperature or 1.0), -1)
    entropy = -torch.where(logs.isinf(), 0.0, logs.exp() * logs.clamp_min(-700)).sum(-1)
    return logs.gather(1, targets[:, None]).squeeze(1), entropy


def gradients(outputs, tensors, *, entropy):
    """Gradients of a fixed random sum of log-probabilities, and of entropies if wanted."""
    generator = torch.Generator().manual_seed(5)
    weights = torch.randn(2, len(outputs[0]), generator=generator, dtype=torch.float64).to(outputs[0].dtype)
    total = (outputs[0] * weights[0]).sum()
    if entropy:
        total = total + (outputs[1] * weights[1]).sum()
    return torch.autograd.grad(total, tensors)


def assert_equal(expected, actual, tolerance=1e-11):
    for one, other in zip(expected, actual, strict=True):
        torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)


HEADS = {
    "plain": {},
    "bias": {"bias": True},
    "scaled": {"scale": 0.3},
    "softcap": {"softcap": 2.0},
    "all": {"bias": True, "scale": 1.7, "softcap": 3.0},
}


@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("name", HEADS)
def test_equals_the_dense_head(name, temperature, entropy):
    head = build_head(**HEADS[name])
    hidden, targets = build_inputs()
    tensors = [hidden, *(x for x in (head.weight, head.bias) if x is not None)]
    expected = dense(hidden, head, targets, temperature)
    actual = token_logprobs(
        hidden, head, targets, temperature=temperature, tile_bytes=5 * ROW, entropy_gradient=entropy
    )
    assert_equal(expected, actual)
    assert_equal(gradients(expected, tensors, entropy=entropy), gradients(actual, tensors, entropy=entropy))


@pytest.mark.parametrize("rows_per_tile", [1, 4, 7, 1000])
@pytest.mark.parametrize("rows_kept", [0, 3, 8, 1000])
def test_tiles_and_budget_change_nothing(rows_per_tile, rows_kept):
    head = build_head(bias=True)
    hidden, targets = build_inputs()
    tensors = [hidden, head.weight, head.bias]
    expected = dense(hidden, head, targets)
    actual = token_logprobs(hidden, head, targets, tile_bytes=rows_per_tile * ROW, keep_bytes=rows_kept * ROW)
    assert_equal(expected, actual)
    assert_equal(gradients(expected, tensors, entropy=False), gradients(actual, tensors, entropy=False))


def test_float32():
    head = build_head(dtype=torch.float32)
    hidden, targets = build_inputs(torch.float32)
    expected, actual = dense(hidden, head, targets), token_logprobs(hidden, head, targets, tile_bytes=999)
    assert_equal(expected, actual, tolerance=1e-5)
    tensors = [hidden, head.weight]
    assert_equal(gradients(expected, tensors, entropy=False), gradients(actual, tensors, entropy=False), 1e-5)


def test_sixteen_bit_weights_get_a_float32_softmax():
    head = build_head(dtype=torch.bfloat16)
    hidden, targets = build_inputs(torch.bfloat16)
    logprobs, entropy = token_logprobs(hidden, head, targets)
    logits = torch.nn.functional.linear(hidden, head.weight).float()
    expected = torch.log_softmax(logits, -1).gather(1, targets[:, None]).squeeze(1)
    assert (torch.float32, torch.float32) == (logprobs.dtype, entropy.dtype)
    torch.testing.assert_close(expected, logprobs)
    logprobs.sum().backward()
    assert hidden.grad.dtype == torch.bfloat16


def test_finite_differences_agree():
    head = build_head(softcap=4.0, bias=True)
    hidden, targets = build_inputs(count=4)

    def function(h, w, b):
        return token_logprobs(
            h, dataclasses.replace(head, weight=w, bias=b), targets, temperature=0.7, entropy_gradient=True
        )

    assert torch.autograd.gradcheck(function, (hidden, head.weight, head.bias))


def test_temperature_zero_counts_as_one():
    head = build_head()
    hidden, targets = build_inputs()
    assert_equal(token_logprobs(hidden, head, targets), token_logprobs(hidden, head, targets, temperature=0.0))


def test_a_token_of_probability_zero():
    head = build_head(bias=True)
    with torch.no_grad():
        head.bias[7] = -torch.inf
    hidden, _ = build_inputs()
    targets = torch.full((COUNT,), 3)
    expected = dense(hidden, head, targets)
    actual = token_logprobs(hidden, head, targets)
    assert_equal(expected, actual)
    found = gradients(actual, [hidden, head.weight, head.bias], entropy=False)
    assert all(torch.isfinite(g).all() for g in found)
    assert found[1][7].tolist() == [0.0] * SIZE


def test_entropy_gradient_beside_a_token_of_probability_zero():
    head = build_head(bias=True)
    with torch.no_grad():
        head.bias[7] = -torch.inf
    hidden, _ = build_inputs()
    actual = token_logprobs(hidden, head, torch.full((COUNT,), 3), entropy_gradient=True)
    assert all(torch.isfinite(g).all() for g in gradients(actual, [hidden, head.weight], entropy=True))


def test_large_logits_neither_overflow_nor_lose_the_certain_token():
    head = build_head(dtype=torch.float32)
    with torch.no_grad():
        head.weight.mul_(1e4)
    hidden, _ = build_inputs(torch.float32)
    best = (hidden @ head.weight.T).argmax(-1)
    logprobs, entropy = token_logprobs(hidden, head, best)
    assert torch.isfinite(logprobs).all()
    assert float(entropy.abs().max()) < 1e-3
    assert torch.isfinite(gradients((logprobs, entropy), [hidden], entropy=False)[0]).all()


def test_entropy_has_no_gradient_unless_asked():
    hidden, targets = build_inputs()
    assert not token_logprobs(hidden, build_head(), targets)[1].requires_grad
    assert token_logprobs(hidden, build_head(), targets, entropy_gradient=True)[1].requires_grad


def test_a_frozen_head_gives_the_hidden_gradient_only():
    head = build_head()
    head.weight.requires_grad_(False)
    hidden, targets = build_inputs()
    expected = gradients(dense(hidden, head, targets), [hidden], entropy=False)
    assert_equal(expected, gradients(token_logprobs(hidden, head, targets), [hidden], entropy=False))
    assert head.weight.grad is None


def test_frozen_hidden_states_give_the_weight_gradient_only():
    head = build_head()
    hidden, targets = build_inputs()
    hidden = hidden.detach()
    expected = gradients(dense(hidden, head, targets), [head.weight], entropy=False)
    assert_equal(expected, gradients(token_logprobs(hidden, head, targets), [head.weight], entropy=False))


def saved_elements(function):
    """Elements of every tensor that autograd keeps for the backward pass."""
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
        function()
    return sum(sizes)


@pytest.mark.parametrize("rows_kept", [0, 8, 1000])
def test_saved_tensors_stay_within_the_budget(rows_kept):
    head = build_head()
    hidden, targets = build_inputs(count=400)
    kept = saved_elements(lambda: token_logprobs(hidden, head, targets, tile_bytes=ROW, keep_bytes=rows_kept * ROW))
    fixed = 2 * hidden.numel() + head.weight.numel() + targets.numel()
    assert kept == fixed + min(400, rows_kept) * (VOCABULARY + 1)


@pytest.mark.parametrize("fields", [{"softcap": 3.0}, {}])
def test_nothing_of_vocabulary_size_is_saved_where_tiles_are_recomputed(fields):
    head = build_head(**fields)
    hidden, targets = build_inputs(count=400)
    kept = saved_elements(lambda: token_logprobs(hidden, head, targets, entropy_gradient=True))
    assert kept <= 2 * hidden.numel() + head.weight.numel() + targets.numel()


def test_a_frozen_head_keeps_no_probabilities():
    head = build_head()
    head.weight.requires_grad_(False)
    hidden, targets = build_inputs(count=400)
    kept = saved_elements(lambda: token_logprobs(hidden, head, targets))
    assert kept <= 2 * hidden.numel() + head.weight.numel() + targets.numel()


def test_without_gradient_nothing_is_saved():
    hidden, targets = build_inputs(count=400)

    def score():
        with torch.no_grad():
            token_logprobs(hidden, build_head(), targets)

    assert saved_elements(score) == 0


def test_backward_may_run_twice():
    head = build_head()
    hidden, targets = build_inputs()
    logprobs, _ = token_logprobs(hidden, head, targets)
    first = torch.autograd.grad(logprobs.sum(), [hidden, head.weight], retain_graph=True)
    assert_equal(first, torch.autograd.grad(logprobs.sum(), [hidden, head.weight]))


def test_no_tokens():
    head = build_head()
    hidden, targets = build_inputs(count=0)
    logprobs, entropy = token_logprobs(hidden, head, targets)
    assert ((0,), (0,)) == (logprobs.shape, entropy.shape)
    assert torch.autograd.grad(logprobs.sum(), [head.weight])[0].abs().sum() == 0


@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("name", HEADS)
def test_a_head_that_is_no_plain_layer_is_called(name, entropy):
    head = build_head(**HEADS[name])
    called = dataclasses.replace(head, weight=None, bias=None)
    hidden, targets = build_inputs()
    tensors = [hidden, *head.module.parameters()]
    expected = dense(hidden, head, targets, 0.7)
    actual = token_logprobs(hidden, called, targets, temperature=0.7, tile_bytes=5 * ROW, entropy_gradient=entropy)
    assert_equal(expected, actual)
    assert_equal(gradients(expected, tensors, entropy=entropy), gradients(actual, tensors, entropy=entropy))


def test_a_called_head_keeps_no_logits():
    head = dataclasses.replace(build_head(), weight=None)
    hidden, targets = build_inputs(count=400)
    kept = saved_elements(lambda: token_logprobs(hidden, head, targets, tile_bytes=10 * ROW))
    assert kept <= 3 * (hidden.numel() + targets.numel())


def test_a_called_head_with_no_tokens():
    head = dataclasses.replace(build_head(), weight=None)
    hidden, targets = build_inputs(count=0)
    assert (0,) == token_logprobs(hidden, head, targets)[0].shape


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"hidden \[N, H\] and targets \[N\], got \(3, 6\) and \(2,\)"):
        token_logprobs(torch.zeros(3, 6), build_head(dtype=torch.float32), torch.zeros(2, dtype=torch.int64))


def test_find_head_of_a_tied_model():
    model = build_tiny("qwen3")
    head = find_head(model)
    assert model.model.embed_tokens.weight is head.weight
    assert (None, 1.0, None) == (head.bias, head.scale, head.softcap)


def test_find_head_reads_granites_divisor():
    assert find_head(build_tiny("granite", logits_scaling=8.0)).scale == 1 / 8


def test_find_head_reads_coheres_factor():
    config = transformers.CohereConfig(**SIZES, logit_scale=0.25)
    assert find_head(transformers.AutoModelForCausalLM.from_config(config)).scale == 0.25


def test_find_head_reads_gemmas_softcap():
    assert find_head(build_tiny("gemma2", final_logit_softcapping=5.0)).softcap == 5.0


def test_find_head_calls_a_layer_that_is_not_plain():
    class Wrapped(torch.nn.Linear):
        pass

    model = build_tiny("qwen3", tie_word_embeddings=False)
    model.lm_head = Wrapped(32, 61, bias=False)
    head = find_head(model)
    assert head.weight is None
    assert model.lm_head is head.module


def test_a_model_without_a_head_is_refused():
    with pytest.raises(ModelError, match="no output layer"):
        find_head(build_tiny("qwen3").model)
