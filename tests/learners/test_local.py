"""The local learner: its numbers, its steps and skips, its names and layouts."""

import math

import numpy as np
import pytest
import torch

from posttrain.batches.pack import pack
from posttrain.config import validate
from posttrain.errors import ConfigError
from posttrain.learners.local import Config
from posttrain.types import Loss, Needs
from tests.learners.learning import LAYOUTS, batches, build, build_model, loss, same, train, weights
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
from tests.tiny_models import build_tiny


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradient_equals_single_forwards(layout):
    model = widen_norms(build_tiny(dtype=torch.float64))
    samples = ragged_groups()
    (-weighted(samples, plain_logprobs(model, samples))).backward()
    expected = gradients(model)
    learner = build(model)
    for microbatch in batches(layout):
        learner.forward_backward(microbatch, loss)
    assert largest_difference(gradients(model), expected) < 1e-9


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logprobs_equal_single_forwards(layout):
    learner = build()
    for microbatch in batches(layout):
        logprobs, entropy = learner.logprobs(microbatch)
        assert (np.float64, np.float64) == (logprobs.dtype, entropy.dtype)
        rows = split(microbatch, torch.tensor(logprobs))
        for row, plain in zip(rows, plain_logprobs(learner.model, microbatch.samples), strict=True):
            torch.testing.assert_close(plain.detach().double(), row, atol=1e-5, rtol=1e-5)


def test_entropy_is_the_distributions():
    learner = build()
    microbatch = pack([sample([5, 6], [7])], token_budget=9, layout="padded")[0]
    logs = torch.log_softmax(learner.model(input_ids=torch.tensor([[5, 6]]), use_cache=False).logits[0, 1], -1)
    expected = -(logs.exp() * logs).sum().item()
    assert pytest.approx(expected, abs=1e-5) == learner.logprobs(microbatch)[1][0]


@pytest.mark.parametrize(("temperature", "divisor"), [(0.5, 0.5), (0.0, 1.0)])
def test_temperature_divides_the_logits(temperature, divisor):
    learner = build(temperature=temperature)
    microbatch = pack([sample([5, 6], [7])], token_budget=9, layout="padded")[0]
    logits = learner.model(input_ids=torch.tensor([[5, 6]]), use_cache=False).logits[0, 1]
    expected = torch.log_softmax(logits / divisor, -1)[7].item()
    assert pytest.approx(expected, abs=1e-5) == learner.logprobs(microbatch)[0][0]


def test_logprobs_leave_no_gradient():
    learner = build()
    learner.logprobs(batches()[0])
    assert all(p.grad is None for _, p in learner.named_tensors())


def test_training_forward_gives_the_same_logprobs_as_scoring():
    learner = build()
    seen = []

    def watch(batch, logprobs, entropy, values):
        seen.extend(logprobs.tolist())
        return loss(batch, logprobs, entropy, values)

    microbatch = batches()[0]
    learner.forward_backward(microbatch, watch)
    assert learner.logprobs(microbatch)[0].tolist() == seen


def test_stats_are_the_losses_own():
    stats = build().forward_backward(batches()[0], loss)
    assert ["entropy"] == list(stats)
    assert 0 < stats["entropy"].result < math.log(61)


@pytest.mark.parametrize("wanted", [False, True])
def test_entropy_has_a_gradient_if_the_algorithm_needs_it(wanted):
    learner = build(needs=Needs(entropy=wanted))

    def watch(batch, logprobs, entropy, values):
        assert wanted == entropy.requires_grad
        return loss(batch, logprobs, entropy, values)

    learner.forward_backward(batches()[0], watch)


def test_a_loss_without_gradient_is_fine():
    learner = build()
    stats = learner.forward_backward(batches()[0], lambda *_: Loss(total=torch.zeros(())))
    assert ({}, True) == (dict(stats), all(p.grad is None for _, p in learner.named_tensors()))


def test_a_microbatch_that_trains_nothing_is_fine():
    learner = build()
    idle = pack([sample([5, 6], [7], mask=[False])], token_budget=9, layout="shared")[0]
    learner.forward_backward(idle, loss)
    assert (0,) == learner.logprobs(idle)[0].shape


def test_head_tiles_change_nothing():
    one, other = build(), build(tile_bytes=300, keep_bytes=0)
    train(one, 1)
    train(other, 1)
    for name, tensor in weights(one).items():
        torch.testing.assert_close(tensor, weights(other)[name], atol=1e-5, rtol=1e-5)


def test_the_cache_is_never_used():
    learner = build()
    seen = []
    learner.model.model.register_forward_hook(lambda module, inputs, out: seen.append(list(out)))
    learner.logprobs(batches()[0])
    assert [["last_hidden_state"]] == seen


def test_step_moves_the_weights_and_clears_the_gradient():
    learner = build()
    before = weights(learner)
    found = train(learner, 1)[0]
    assert (1, False, 1e-2) == (found.version, found.skipped, found.learning_rate)
    assert not same(before, weights(learner))
    assert all(p.grad is None for _, p in learner.named_tensors())


def test_grad_norm_is_that_before_clipping():
    one, other = build(max_grad_norm=1e-3), build(max_grad_norm=None)
    assert train(one, 1)[0].grad_norm == train(other, 1)[0].grad_norm > 1e-3


def test_clipping_limits_the_update():
    one, other = (build(max_grad_norm=limit, eps=1.0) for limit in (1e-3, None))
    before = weights(one)
    train(one, 1)
    train(other, 1)

    def moved(learner):
        return sum(float((t - before[n]).norm()) for n, t in weights(learner).items())

    assert moved(one) < 0.1 * moved(other)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(bad):
    learner = build()
    train(learner, 2)
    before, moments = weights(learner), {id(p): s["exp_avg"].clone() for p, s in learner._optimizer.state.items()}
    learner.forward_backward(batches()[0], lambda b, lp, e, v: Loss(total=lp.sum() * bad))
    found = learner.step()
    assert (True, 2, 2) == (found.skipped, found.version, learner.version)
    assert not math.isfinite(found.grad_norm)
    assert same(before, weights(learner))
    assert all(torch.equal(moments[id(p)], s["exp_avg"]) for p, s in learner._optimizer.state.items())
    assert all(p.grad is None for _, p in learner.named_tensors())


def test_training_goes_on_after_a_skipped_step():
    learner = build()
    learner.forward_backward(batches()[0], lambda b, lp, e, v: Loss(total=lp.sum() * math.nan))
    learner.step()
    assert (False, 1) == (train(learner, 1)[0].skipped, learner.version)


def test_a_step_without_any_gradient_changes_nothing():
    learner = build(weight_decay=0.5)
    train(learner, 1)
    before = weights(learner)
    found = learner.step()
    assert (0.0, False, 1) == (found.grad_norm, found.skipped, found.version)
    assert same(before, weights(learner))


def test_the_schedule_goes_by_calls():
    learner = build(schedule="linear", total_steps=4, warmup_steps=2)
    assert [0.005, 0.01, 0.01, 0.005] == [found.learning_rate for found in train(learner, 4)]


def test_weight_decay_shrinks_matrices_only():
    one, other = build(weight_decay=0.5), build()
    train(one, 1)
    train(other, 1)
    differ = {n for n, t in weights(one).items() if not torch.equal(t, weights(other)[n])}
    assert differ
    assert all("proj.weight" in name for name in differ)


def test_loss_falls():
    learner = build()
    before = sum(learner.logprobs(m)[0].sum() for m in batches())
    train(learner, 10)
    assert sum(learner.logprobs(m)[0].sum() for m in batches()) > before


def test_the_split_does_not_change_the_step():
    one, other = (
        build(widen_norms(build_tiny(dtype=torch.float64))),
        build(widen_norms(build_tiny(dtype=torch.float64))),
    )
    for learner, layout, budget in ((one, "padded", 30), (other, "shared", 10**6)):
        for microbatch in batches(layout, budget):
            learner.forward_backward(microbatch, loss)
        learner.step()
    assert all(torch.allclose(t, weights(other)[n], atol=1e-9) for n, t in weights(one).items())


def test_named_tensors_come_in_fixed_order_with_tied_weights_once():
    learner = build()
    names = [name for name, _ in learner.named_tensors()]
    assert names == [name for name, _ in build().named_tensors()]
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names


def test_named_tensors_are_the_parameters_themselves():
    learner = build()
    assert all(p is dict(learner.model.named_parameters())[n] for n, p in learner.named_tensors())


def test_layouts_and_reason_are_shown():
    assert (set(LAYOUTS), "") == (build().layouts, build().layout_reason)


def test_a_softcapped_model_trains_on_padded_rows():
    learner = build(build_tiny("gemma2"))
    assert {"padded"} == learner.layouts
    assert "softcap" in learner.layout_reason
    for microbatch in batches("padded"):
        rows = split(microbatch, torch.tensor(learner.logprobs(microbatch)[0]))
        for row, plain in zip(rows, plain_logprobs(learner.model, microbatch.samples), strict=True):
            torch.testing.assert_close(plain.detach().double(), row, atol=1e-5, rtol=1e-5)
    assert 1 == train(learner, 1, "padded")[0].version


def test_a_layout_that_failed_is_refused():
    learner = build(build_tiny("gemma2"))
    with pytest.raises(ConfigError, match=r"layout 'shared' .* softcap"):
        learner.logprobs(batches("shared")[0])


def test_an_engine_may_switch_the_attention_between_calls():
    learner = build()
    expected = learner.logprobs(batches()[0])[0]
    learner.model.set_attn_implementation("sdpa")
    assert expected.tolist() == learner.logprobs(batches()[0])[0].tolist()


def test_the_model_stays_in_evaluation_mode():
    learner = build(build_model().train())
    train(learner, 1)
    assert not any(module.training for module in learner.model.modules())


def test_a_critic_is_refused():
    with pytest.raises(ConfigError, match="no critic"):
        build(needs=Needs(values=True))


def test_unknown_settings_are_refused():
    with pytest.raises(ConfigError, match="learning_rate"):
        validate(Config, {"learning_rates": 1.0}, where="learner")
