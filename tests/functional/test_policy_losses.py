"""Policy losses beyond the clip: gradients in closed form, reductions to known cases, invariances."""

import math

import pytest
import torch

from posttrain.functional import surrogates
from posttrain.functional.masked import flatten
from posttrain.functional.ratios import sequence_ratio, straight_through_sequence_ratio, token_ratio, turn_ratio
from posttrain.functional.reduce import token_weights
from tests.golden.fixtures import COUNT, COUNTS, MASK, NEW, OLD, SAMPLES, A, f64, new, old

CLIP = {"clip_low": 0.2, "clip_high": 0.2}


def ppo(logprobs, before, advantages, samples):
    return surrogates.clipped(token_ratio(logprobs, before), advantages, **CLIP)


def gspo(logprobs, before, advantages, samples):
    ratio = sequence_ratio(logprobs, before, samples, COUNT)[samples]
    return surrogates.clipped(ratio, advantages, **CLIP)


def gspo_token(logprobs, before, advantages, samples):
    ratio = straight_through_sequence_ratio(logprobs, before, samples, COUNT)
    return surrogates.clipped(ratio, advantages, **CLIP)


def cispo(logprobs, before, advantages, samples):
    return surrogates.cispo(logprobs, token_ratio(logprobs, before), advantages, clip_high=0.2)


def sapo(logprobs, before, advantages, samples):
    return surrogates.sapo(token_ratio(logprobs, before), advantages)


def dppo(logprobs, before, advantages, samples):
    keep = surrogates.dppo_keep(logprobs, before, advantages)
    return surrogates.dppo(logprobs, before, advantages, keep)


def dro(logprobs, before, advantages, samples):
    return surrogates.dro(logprobs, before, advantages)


def gmpo(logprobs, before, advantages, samples):
    return surrogates.geometric_mean(logprobs, before, advantages, samples, COUNT)


def reinforce(logprobs, before, advantages, samples):
    return surrogates.reinforce(logprobs, advantages)


LOSSES = [ppo, gspo, gspo_token, cispo, sapo, dppo, dro, gmpo, reinforce]
WEIGHTS = token_weights("seq-mean-token-mean", COUNTS)


def value_and_slope(loss, before=old) -> tuple[float, list[float]]:
    leaf = new.clone().requires_grad_()
    total = (WEIGHTS[SAMPLES] * loss(leaf, before, A, SAMPLES)).sum()
    total.backward()
    return float(total.detach()), leaf.grad.tolist()


@pytest.mark.parametrize("loss", LOSSES)
def test_on_policy_every_loss_has_the_gradient_of_reinforce(loss):
    assert value_and_slope(reinforce)[1] == pytest.approx(value_and_slope(loss, before=new)[1], abs=1e-12)


@pytest.mark.parametrize("loss", [ppo, gspo, sapo, dro, gmpo, reinforce])
def test_gradient_is_that_of_finite_differences_where_nothing_is_detached(loss):
    leaf, step = new.clone(), 1e-6
    slopes = []
    for t in range(len(new)):
        up, down = leaf.clone(), leaf.clone()
        up[t] += step
        down[t] -= step
        difference = loss(up, old, A, SAMPLES) - loss(down, old, A, SAMPLES)
        slopes.append(float((WEIGHTS[SAMPLES] * difference).sum()) / (2 * step))
    assert slopes == pytest.approx(value_and_slope(loss)[1], abs=1e-7)


@pytest.mark.parametrize("loss", LOSSES)
def test_masked_nan_changes_neither_value_nor_gradient(loss):
    padded = NEW.masked_fill(~MASK, float("nan")).requires_grad_()
    samples, current, before = flatten(MASK, padded, OLD.masked_fill(~MASK, float("nan")))
    total = (WEIGHTS[samples] * loss(current, before, A, samples)).sum()
    total.backward()
    expected_value, expected_slope = value_and_slope(loss)
    assert expected_value == pytest.approx(float(total.detach()), abs=1e-12)
    assert expected_slope == pytest.approx(padded.grad[MASK].tolist(), abs=1e-12)
    assert [0.0] * int((~MASK).sum()) == padded.grad[~MASK].tolist()


@pytest.mark.parametrize("loss", LOSSES)
def test_row_order_permutes_the_token_losses(loss):
    rows = [2, 0, 3, 1]
    order = torch.cat([torch.nonzero(SAMPLES == row)[:, 0] for row in rows])
    numbers = torch.arange(COUNT).repeat_interleave(COUNTS[rows])
    moved = loss(new[order], old[order], A[order], numbers)
    assert loss(new, old, A, SAMPLES)[order].tolist() == pytest.approx(moved.tolist(), abs=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_float32_stays_close(loss):
    narrow = loss(new.float(), old.float(), A.float(), SAMPLES)
    assert loss(new, old, A, SAMPLES).tolist() == pytest.approx(narrow.tolist(), abs=1e-5)


@pytest.mark.parametrize("loss", [loss for loss in LOSSES if loss is not dro])
def test_no_advantage_no_push(loss):
    leaf = new.clone().requires_grad_()
    loss(leaf, old, torch.zeros_like(A), SAMPLES).sum().backward()
    assert [0.0] * len(new) == leaf.grad.tolist()


@pytest.mark.parametrize("loss", LOSSES)
def test_no_gradient_reaches_the_advantage(loss):
    assert not loss(new, old, A.clone().requires_grad_(), SAMPLES).requires_grad


def test_gspo_token_is_gspo_for_a_constant_advantage():
    assert value_and_slope(gspo)[0] == pytest.approx(value_and_slope(gspo_token)[0], abs=1e-12)
    assert value_and_slope(gspo)[1] == pytest.approx(value_and_slope(gspo_token)[1], abs=1e-12)


def test_gspo_of_one_token_rows_is_ppo():
    rows = torch.arange(13)
    ratio = sequence_ratio(new, old, rows, 13)[rows]
    assert ppo(new, old, A, rows).tolist() == surrogates.clipped(ratio, A, **CLIP).tolist()


def test_turn_ratio_of_a_single_turn_is_the_sequence_ratio():
    expected = sequence_ratio(new, old, SAMPLES, COUNT)[SAMPLES]
    assert expected.tolist() == turn_ratio(new, old, SAMPLES, torch.zeros_like(SAMPLES)).tolist()


def test_cispo_keeps_the_gradient_of_clipped_tokens():
    leaf = new.clone().requires_grad_()
    cispo(leaf, old, A, SAMPLES).sum().backward()
    assert (-A * (new - old).exp().clamp(max=1.2)).tolist() == pytest.approx(leaf.grad.tolist(), abs=1e-12)


def test_cispo_lower_bound_is_off_by_default():
    tiny = surrogates.cispo(f64([-1.0]), f64([1e-3]), f64([1.0]), clip_high=0.2)
    assert 1e-3 == pytest.approx(float(tiny))


@pytest.mark.parametrize(("advantage", "tau"), [(1.0, 1.0), (-1.0, 1.05), (-1.0, 2.0)])
@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
def test_sapo_gradient_is_a_gate_that_closes_on_both_sides(advantage, tau, ratio):
    leaf = f64([math.log(ratio)]).requires_grad_()
    surrogates.sapo(leaf.exp(), f64([advantage]), negative_temperature=tau).sum().backward()
    gate = 1 / (1 + math.exp(-tau * (ratio - 1)))
    assert -4 * gate * (1 - gate) * ratio * advantage == pytest.approx(float(leaf.grad), abs=1e-12)


@pytest.mark.parametrize("divergence", ["tv", "kl"])
@pytest.mark.parametrize(("p_old", "p_new", "advantage"), [(0.9, 0.2, 1.0), (0.2, 0.9, -1.0), (0.1, 0.9, 0.0)])
def test_dppo_never_drops_a_move_against_the_advantage(divergence, p_old, p_new, advantage):
    assert bool(surrogates.dppo_keep(f64([p_new]).log(), f64([p_old]).log(), f64([advantage]), divergence=divergence))


@pytest.mark.parametrize(("p_old", "p_new", "advantage"), [(0.5, 0.9, 1.0), (0.99, 0.75, -1.0)])
@pytest.mark.parametrize(("factor", "kept"), [(0.99, False), (1.01, True)])
def test_dppo_kl_bound_is_the_two_outcome_kl(p_old, p_new, advantage, factor, kept):
    bound = factor * (p_old * math.log(p_old / p_new) + (1 - p_old) * math.log((1 - p_old) / (1 - p_new)))
    keep = surrogates.dppo_keep(
        f64([p_new]).log(), f64([p_old]).log(), f64([advantage]), divergence="kl", low=bound, high=bound
    )
    assert kept is bool(keep)


def test_dppo_dropped_tokens_have_no_gradient_and_the_others_reinforces():
    leaf = f64([0.6, 0.5]).log().requires_grad_()
    before, advantages = f64([0.3, 0.4]).log(), f64([1.0, 1.0])
    keep = surrogates.dppo_keep(leaf, before, advantages)
    surrogates.dppo(leaf, before, advantages, keep).sum().backward()
    assert [0.0, -1.25] == pytest.approx(leaf.grad.tolist(), abs=1e-12)


def test_dppo_survives_a_certain_token():
    keep = surrogates.dppo_keep(f64([0.0]), f64([-1.0]), f64([1.0]), divergence="kl")
    assert keep.tolist() == [False]


def test_dro_is_stationary_where_the_log_ratio_is_advantage_over_beta():
    leaf = (old + A / 0.1).requires_grad_()
    surrogates.dro(leaf, old, A, beta=0.1).sum().backward()
    assert [0.0] * 13 == pytest.approx(leaf.grad.tolist(), abs=1e-12)


def test_gmpo_without_clip_is_minus_a_times_the_gspo_ratio():
    ratio = sequence_ratio(new, old, SAMPLES, COUNT)[SAMPLES]
    actual = surrogates.geometric_mean(new, old, A, SAMPLES, COUNT, clip=20.0)
    assert (-A * ratio).tolist() == pytest.approx(actual.tolist(), abs=1e-12)


def test_gmpo_clips_only_the_side_that_would_help():
    rising, falling = f64([1.0]), f64([-1.0])
    row = torch.zeros(1, dtype=torch.int64)
    zero = torch.zeros(1).double()
    assert -math.exp(0.4) == pytest.approx(float(surrogates.geometric_mean(rising, zero, f64([1.0]), row, 1)))
    assert -math.exp(-1.0) == pytest.approx(float(surrogates.geometric_mean(falling, zero, f64([1.0]), row, 1)))
    assert math.exp(-0.4) == pytest.approx(float(surrogates.geometric_mean(falling, zero, f64([-1.0]), row, 1)))
