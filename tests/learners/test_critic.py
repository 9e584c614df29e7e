"""The local learner's critic: layouts, warm-up, its own rate and norm, exact resume."""

import math

import numpy as np
import pytest
import torch

from posttrain.config import validate
from posttrain.errors import ConfigError, RecordError
from posttrain.learners.local import Config, LocalLearner
from posttrain.models.values import Critic
from posttrain.types import Loss, Needs
from tests.learners.critics import LAYOUTS, batches, build, gradients, loss, train, weights
from tests.learners.learning import same
from tests.models.samples import largest_difference, ragged_groups, weighted, widen_norms
from tests.tiny_models import build_tiny


def wide():
    return widen_norms(build_tiny(dtype=torch.float64)), widen_norms(build_tiny(dtype=torch.float64, seed=5))


def single_forwards(learner, own):
    """The gradient of `loss` from each model's own forward on single rows."""
    critic = learner._critic
    losses = []
    for one in ragged_groups():
        ids, places = torch.tensor(one.ids)[None], np.flatnonzero(one.loss_mask)
        hidden = learner.model.model(input_ids=ids, use_cache=False).last_hidden_state[0]
        logits = learner.model.lm_head(hidden)
        logprobs = torch.log_softmax(logits, -1)[places - 1, one.ids[places]]
        trunk = hidden if own is None else own.model(input_ids=ids, use_cache=False).last_hidden_state[0]
        values = critic.head(trunk[places - 1])
        squared = 0.5 * (values - torch.tensor(one.advantages[places])) ** 2
        losses.append(squared - logprobs)
    weighted(ragged_groups(), losses).backward()
    return gradients(learner)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradient_equals_single_forwards(layout, shared):
    model, own = wide()
    learner = build(model=model, own=own, shared=shared)
    expected = single_forwards(learner, None if shared else own)
    for microbatch in batches(layout):
        learner.forward_backward(microbatch, loss)
    assert largest_difference(gradients(learner), expected) < 1e-9


@pytest.mark.parametrize("budget", [30, 60, 10_000])
def test_the_microbatch_split_changes_nothing(budget):
    model, own = wide()
    learner = build(model=model, own=own)
    expected = single_forwards(learner, own)
    for microbatch in batches("shared", budget):
        learner.forward_backward(microbatch, loss)
    assert largest_difference(gradients(learner), expected) < 1e-9


@pytest.mark.parametrize("shared", [True, False])
def test_values_without_gradient_are_those_of_training(shared):
    learner, seen = build(shared=shared), []

    def watch(batch, logprobs, entropy, values):
        seen.extend(values.tolist())
        return loss(batch, logprobs, entropy, values)

    microbatch = batches()[0]
    learner.forward_backward(microbatch, watch)
    assert learner.values(microbatch).tolist() == seen


@pytest.mark.parametrize("shared", [True, False])
def test_a_step_moves_policy_and_critic(shared):
    learner = build(shared=shared)
    before = weights(learner)
    train(learner, 1)
    assert [] == [name for name, tensor in weights(learner).items() if torch.equal(tensor, before[name])]


@pytest.mark.parametrize("shared", [True, False])
def test_warm_up_leaves_the_policy_untouched(shared):
    learner = build(shared=shared, warmup=2)
    before = weights(learner)
    found = train(learner, 2)
    after = weights(learner)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert (set(), [1, 2]) == ({n for n in moved if not n.startswith("critic.")}, [step.version for step in found])
    assert any(name.startswith("critic.head") for name in moved)


def test_after_the_warm_up_the_policy_moves():
    learner = build(warmup=1)
    train(learner, 1)
    before = weights(learner)
    train(learner, 1)
    assert any(not torch.equal(t, before[n]) for n, t in weights(learner).items() if not n.startswith("critic."))


def test_the_policys_schedule_begins_after_the_warm_up():
    learner = build(warmup=3, warmup_steps=2)
    assert [0.5e-2, 0.5e-2, 0.5e-2, 0.5e-2, 1e-2] == [step.learning_rate for step in train(learner, 5)]


def test_the_critic_has_its_own_rate():
    slow, fast = build(rate=1e-5), build(rate=1e-2)
    start = weights(slow)
    train(slow, 1)
    train(fast, 1)
    moved = [
        float((weights(one)["critic.head.linear.weight"] - start["critic.head.linear.weight"]).abs().max())
        for one in (slow, fast)
    ]
    assert pytest.approx(1e3, rel=1e-2) == moved[1] / moved[0]
    assert torch.equal(
        weights(slow)["lm_head.weight" if "lm_head.weight" in start else "model.norm.weight"],
        weights(fast)["lm_head.weight" if "lm_head.weight" in start else "model.norm.weight"],
    )


def test_the_norm_is_of_both():
    learner = build(max_grad_norm=None)
    for microbatch in batches():
        learner.forward_backward(microbatch, loss)
    squares = [float(p.grad.double().square().sum()) for _, p in learner.trained_tensors() if p.grad is not None]
    assert pytest.approx(math.sqrt(sum(squares)), rel=1e-6) == learner.step().grad_norm


def test_a_critic_gradient_that_is_not_finite_stops_both():
    learner = build()
    before = weights(learner)

    def broken(batch, logprobs, entropy, values):
        return Loss(total=logprobs.sum() + values.sum() * math.inf)

    learner.forward_backward(batches()[0], broken)
    found = learner.step()
    assert (True, 0) == (found.skipped, found.version)
    assert same(before, weights(learner))


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("done", [1, 3])
def test_resume_continues_bit_for_bit(shared, done, tmp_path):
    one = build(shared=shared, warmup=2)
    train(one, done)
    one.save(tmp_path)
    train(one, 2)
    other = build(shared=shared, warmup=2, model=build_tiny(seed=9), own=build_tiny(seed=8), head_seed=1)
    other.load(tmp_path)
    train(other, 2)
    assert same(weights(one), weights(other))


def test_a_checkpoint_without_the_critic_is_refused(tmp_path):
    build(shared=True).save(tmp_path)
    (tmp_path / "model" / "value_head.safetensors").unlink()
    with pytest.raises(RecordError, match="cannot be read"):
        build(shared=True).load(tmp_path)


def test_named_tensors_are_the_policys_alone():
    assert all(not name.startswith("critic.") for name, _ in build().named_tensors())


def test_values_without_a_critic_are_refused():
    learner = LocalLearner(validate(Config, {}, where="test"), build_tiny(), 1.0, 1, Needs())
    with pytest.raises(ConfigError, match="no critic"):
        learner.values(batches()[0])


def test_an_algorithm_that_needs_values_needs_a_critic():
    with pytest.raises(ConfigError, match="was given no critic"):
        LocalLearner(Config(), build_tiny(), 1.0, 1, Needs(values=True))


def test_scores_have_no_policy():
    learner = build(shared=True, needs=Needs(values=True, scores=True))

    def watch(batch, logprobs, entropy, values):
        assert entropy is None
        assert not logprobs.any()
        return Loss(total=values.sum())

    learner.forward_backward(batches()[0], watch)
    assert "critic.head.linear.weight" in gradients(learner)


def test_a_critic_of_fewer_layouts_narrows_the_learners():
    model = build_tiny()
    critic = Critic(model, own=build_tiny("gemma2", seed=5))
    learner = LocalLearner(Config(), model, 1.0, 1, Needs(values=True), critic=critic)
    assert critic.support.layouts >= learner.layouts
