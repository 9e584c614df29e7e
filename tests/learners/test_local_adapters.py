"""The local learner with a reference, with adapters and their dropout, and with recomputed layers."""

import numpy as np
import pytest
import torch

from posttrain import config
from posttrain.errors import ConfigError
from posttrain.models import scoring
from posttrain.models.attention import use
from posttrain.models.lora import add_lora
from tests.learners.learning import batches, build, build_model, loss, same, train, weights
from tests.tiny_models import build_tiny


def test_reference_of_lora_is_the_model_without_adapters():
    learner = build(build_model(lora=True))
    microbatch = batches()[0]
    plain = build().logprobs(microbatch)[0]
    np.testing.assert_allclose(plain, learner.logprobs(microbatch, reference=True)[0], atol=1e-5)
    assert np.abs(plain - learner.logprobs(microbatch)[0]).max() > 1e-3


def test_scoring_the_reference_leaves_the_adapters_on_and_training():
    learner = build(build_model(lora=True))
    microbatch, trainable = batches()[0], [p.requires_grad for _, p in learner.named_tensors()]
    before = learner.logprobs(microbatch)[0]
    learner.logprobs(microbatch, reference=True)
    assert trainable == [p.requires_grad for _, p in learner.named_tensors()]
    assert before.tolist() == learner.logprobs(microbatch)[0].tolist()


def test_reference_of_full_training_is_the_reference_model():
    learner = build(reference_model=build_model())
    expected = learner.logprobs(batches()[0])[0]
    train(learner, 1)
    np.testing.assert_allclose(expected, learner.logprobs(batches()[0], reference=True)[0], atol=1e-6)


def test_a_reference_model_narrows_the_layouts():
    learner = build(reference_model=build_tiny("gemma2"))
    assert {"padded"} == learner.layouts
    assert learner.layout_reason.startswith("reference model: ")


def test_without_reference_the_question_is_refused():
    with pytest.raises(ConfigError, match="neither LoRA nor a reference model"):
        build().logprobs(batches()[0], reference=True)


def test_lora_trains_the_adapters_only():
    learner = build(build_model(lora=True))
    before = weights(learner)
    train(learner, 1)
    moved = {name for name, tensor in weights(learner).items() if not torch.equal(tensor, before[name])}
    assert {name for name in before if "lora_" in name} == moved


def test_fresh_adapters_have_ratio_one():
    learner = build(add_lora(build_model(), config.Lora(rank=2), seed=0))
    microbatch = batches()[0]
    assert learner.logprobs(microbatch, reference=True)[0].tolist() == learner.logprobs(microbatch)[0].tolist()


def test_dropout_of_adapters_is_drawn_from_the_learners_own_seed():
    found = []
    for seed in (3, 3, 4):
        learner = build(build_model(lora=True, dropout=0.4), seed=seed)
        torch.rand(seed + len(found))
        train(learner, 2)
        found.append(weights(learner))
    assert same(found[0], found[1])
    assert not same(found[0], found[2])


def test_dropout_differs_between_microbatches():
    learner = build(build_model(lora=True, dropout=0.4))
    seen = []

    def watch(batch, logprobs, entropy, values):
        seen.append(logprobs.tolist())
        return loss(batch, logprobs, entropy, values)

    microbatch = batches()[0]
    learner.forward_backward(microbatch, watch)
    learner.forward_backward(microbatch, watch)
    assert seen[0] != seen[1]


def test_dropout_is_off_when_scoring_and_leaves_the_generator_alone():
    learner = build(build_model(lora=True, dropout=0.4))
    microbatch = batches()[0]
    first = learner.logprobs(microbatch)[0]
    state = torch.get_rng_state()
    learner.forward_backward(microbatch, loss)
    assert torch.equal(state, torch.get_rng_state())
    assert first.tolist() == learner.logprobs(microbatch)[0].tolist()


@pytest.fixture
def _whole_layers(monkeypatch):
    """Let the last layer run whole without checkpointing too, as it does with it."""
    monkeypatch.setattr(scoring, "last_layer", lambda trunk: None)


@pytest.mark.usefixtures("_whole_layers")
@pytest.mark.parametrize("lora", [False, True])
def test_checkpointing_changes_no_bit(lora):
    one, other = build(build_model(lora=lora)), build(build_model(lora=lora), gradient_checkpointing=True)
    assert train(one, 2) == train(other, 2)
    assert same(weights(one), weights(other))


def test_checkpointing_differs_by_rounding_from_a_shortened_last_layer():
    one, other = build(), build(gradient_checkpointing=True)
    norms = [[step.grad_norm for step in train(learner, 2)] for learner in (one, other)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


@pytest.mark.usefixtures("_whole_layers")
def test_checkpointing_saves_less():
    sizes = {}
    for wanted in (False, True):
        learner = build(gradient_checkpointing=wanted)
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, kept=kept: kept.append(x.numel()) or x, lambda x: x):
            learner.forward_backward(batches()[0], loss)
        sizes[wanted] = sum(kept)
    assert sizes[True] < 0.5 * sizes[False]


def test_checkpointing_leaves_generation_its_cache():
    learner = build(gradient_checkpointing=True)
    train(learner, 1)
    use(learner.model, "sdpa")
    assert learner.model(input_ids=torch.tensor([[5, 6]]), use_cache=True).past_key_values.get_seq_length() == 2
