"""Every layout gives the log-probabilities and gradients of plain single forwards, in every model family."""

import pytest
import torch

from posttrain.batches.pack import pack
from posttrain.models.attention import NAME
from posttrain.models.heads import find_head
from posttrain.models.rows import tensors
from posttrain.models.scoring import Scorer, body, causal_model
from tests.models.samples import (
    gradients,
    largest_difference,
    plain_logprobs,
    ragged_groups,
    sample,
    split,
    weighted,
    widen_norms,
)
from tests.tiny_models import FAMILIES, build_tiny

LAYOUTS = ("padded", "packed", "shared")
OVERRIDES = {"gemma2": {"attn_logit_softcapping": None}}


def build(family, dtype, **overrides):
    model = build_tiny(family, dtype=dtype, **(OVERRIDES.get(family, {}) | overrides))
    if dtype == torch.float32:
        return model
    if family == "gemma2":
        model.set_attn_implementation(NAME)  # its own softmax is float32; without a plan ours is torch's SDPA
    return widen_norms(model)


def compare(model, layout, *, budget=1000, samples=None):
    """Return the largest differences of log-probabilities and gradients between a layout and single forwards."""
    samples = samples or ragged_groups()
    truth = plain_logprobs(model, samples)
    weighted(samples, truth).backward()
    expected = gradients(model)
    by_sample = {id(one): row.detach() for one, row in zip(samples, truth, strict=True)}
    scorer = Scorer(model=model, head=find_head(model), implementation=NAME)
    worst = 0.0
    microbatches = pack(samples, token_budget=budget, layout=layout)
    for microbatch in microbatches:
        flat, _ = scorer.score(tensors(microbatch, "cpu"))
        rows = split(microbatch, flat)
        for one, row in zip(microbatch.samples, rows, strict=True):
            worst = max([worst, *(row.detach() - by_sample[id(one)]).abs().tolist()])
        if flat.requires_grad:
            weighted(microbatch.samples, rows).backward()
    return worst, largest_difference(gradients(model), expected), len(microbatches)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_float32_equals_single_forwards(family, layout):
    logprob_error, gradient_error, _ = compare(build(family, torch.float32), layout)
    assert logprob_error < 1e-5
    assert gradient_error < 1e-5


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_float64_equals_single_forwards(family, layout):
    logprob_error, gradient_error, _ = compare(build(family, torch.float64), layout)
    assert logprob_error < 1e-9
    assert gradient_error < 1e-9


@pytest.mark.parametrize("layout", LAYOUTS)
def test_split_into_many_microbatches_changes_nothing(layout):
    logprob_error, gradient_error, count = compare(build("qwen3", torch.float64), layout, budget=25)
    assert count > 4
    assert logprob_error < 1e-9
    assert gradient_error < 1e-9


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", ["mistral", "gemma3"])
def test_sliding_window_shorter_than_the_samples(family, layout):
    model = build(family, torch.float64, sliding_window=6)
    logprob_error, gradient_error, _ = compare(model, layout)
    assert logprob_error < 1e-9
    assert gradient_error < 1e-9


def test_window_test_has_teeth():
    model = build("mistral", torch.float64, sliding_window=6)
    wide = build("mistral", torch.float64)
    one = [sample(range(3, 20), [5, 6])]
    assert not torch.allclose(plain_logprobs(model, one)[0], plain_logprobs(wide, one)[0], atol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pad_token_inside_a_sample_keeps_its_zero_embedding_gradient(layout):
    samples = [sample([5, 0, 6], [0, 7, 8], rollout=i) for i in range(2)]
    _, gradient_error, _ = compare(build("qwen3", torch.float64), layout, samples=samples)
    assert gradient_error < 1e-9


def test_one_sample_of_one_token():
    logprob_error, gradient_error, _ = compare(build("qwen3", torch.float64), "shared", samples=[sample([5], [6])])
    assert logprob_error < 1e-9
    assert gradient_error < 1e-9


def test_nothing_trained_gives_empty_results():
    model = build("qwen3", torch.float32)
    scorer = Scorer(model=model, head=find_head(model), implementation=NAME)
    microbatch = pack([sample([5, 6], [7], mask=[False])], token_budget=10, layout="packed")[0]
    logprobs, entropy = scorer.score(tensors(microbatch, "cpu"))
    assert (0, 0) == (len(logprobs), len(entropy))


def test_temperature_divides_the_logits():
    model = build("qwen3", torch.float64)
    one = sample([5, 6, 7], [8, 9])
    scorer = Scorer(model=model, head=find_head(model), implementation=NAME, temperature=0.5)
    logprobs, _ = scorer.score(tensors(pack([one], token_budget=10, layout="padded")[0], "cpu"))
    logits = model(input_ids=torch.tensor(one.ids)[None], use_cache=False).logits[0]
    expected = torch.log_softmax(logits / 0.5, -1)[[2, 3], [8, 9]]
    torch.testing.assert_close(expected, logprobs)


def test_a_branch_cannot_see_its_sister():
    model = build("qwen3", torch.float32)
    scorer = Scorer(model=model, head=find_head(model), implementation=NAME)
    found = []
    for word in (11, 12):
        family = [sample([5, 6, 7], [8, 9, 10]), sample([5, 6, 7], [word, word, word], rollout=1)]
        microbatch = pack(family, token_budget=100, layout="shared")[0]
        found.append(split(microbatch, scorer.score(tensors(microbatch, "cpu"))[0])[0])
    assert found[0].tolist() == found[1].tolist()


def test_body_and_causal_model_of_a_plain_model():
    model = build_tiny()
    assert model is causal_model(model)
    assert model.model is body(model)
