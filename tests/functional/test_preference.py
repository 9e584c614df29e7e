"""Pairs: how tokens become sums, what weighs them, and what is watched."""

import math
from dataclasses import replace

import pytest
import torch

from posttrain.functional.masked import flatten
from posttrain.functional.preference import (
    desensitised_logprobs,
    log_collision,
    make_pairs,
    pair_metrics,
    sequence_logprobs,
    wpo_weights,
)
from posttrain.functional.preference_pairs import dpo
from tests.golden.fixtures_preference import f64, pairs

SAMPLES = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2])
LOGPROBS = f64([-1.0, -0.5, -2.0, -0.3, -1.2, -0.8, -2.0, -1.0, -0.1])
CHOSEN, REJECTED = torch.tensor([0, 0]), torch.tensor([1, 2])


def test_a_sum_is_over_the_tokens_of_one_row():
    assert [-3.5, -1.5, -3.9] == pytest.approx(sequence_logprobs(LOGPROBS, SAMPLES, 3).tolist())


def test_sums_run_in_float64_so_that_a_small_gap_survives():
    tokens = torch.full((4000,), -0.5000001, dtype=torch.float32)
    total = sequence_logprobs(tokens, torch.zeros(4000, dtype=torch.long), 1)
    assert float(tokens[0].double() * 4000) == pytest.approx(float(total), abs=1e-9)


def test_gradients_come_back_in_the_dtype_of_the_tokens():
    tokens = LOGPROBS.float().requires_grad_()
    sequence_logprobs(tokens, SAMPLES, 3).sum().backward()
    assert torch.float32 == tokens.grad.dtype


def test_one_chosen_row_may_stand_against_many_rejected_rows():
    made = make_pairs(LOGPROBS, SAMPLES, 3, CHOSEN, REJECTED)
    assert [-3.5, -3.5] == pytest.approx(made.chosen.tolist())
    assert [-1.5, -3.9] == pytest.approx(made.rejected.tolist())
    assert [3, 3] == made.chosen_count.tolist()
    assert [2, 4] == made.rejected_count.tolist()


def test_reference_sums_carry_no_gradient():
    reference = LOGPROBS.clone().requires_grad_()
    made = make_pairs(LOGPROBS, SAMPLES, 3, CHOSEN, REJECTED, ref_logprobs=reference)
    assert made.ref_chosen is not None
    assert not made.ref_chosen.requires_grad


def test_a_loss_with_a_reference_refuses_pairs_without():
    with pytest.raises(ValueError, match="reference"):
        dpo(make_pairs(LOGPROBS, SAMPLES, 3, CHOSEN, REJECTED))


def test_an_empty_answer_has_average_zero_and_finite_gradients():
    logprobs = f64([-1.0, -2.0]).requires_grad_()
    made = make_pairs(logprobs, torch.tensor([0, 0]), 2, torch.tensor([0]), torch.tensor([1]), ref_logprobs=logprobs)
    assert [0.0] == made.rejected_average.tolist()
    made.average_gap.sum().backward()
    assert torch.isfinite(logprobs.grad).all()


def test_nan_at_masked_places_changes_neither_loss_nor_gradient():
    mask = torch.tensor([[True, True, False], [True, False, False]])
    grads, losses = [], []
    for garbage in (0.0, math.nan):
        padded = f64([[-1.0, -2.0, garbage], [-0.5, garbage, garbage]]).requires_grad_()
        rows, tokens = flatten(mask, padded)
        made = make_pairs(tokens, rows, 2, torch.tensor([0]), torch.tensor([1]), ref_logprobs=tokens.detach() - 0.3)
        loss = dpo(made).sum()
        loss.backward()
        losses.append(float(loss.detach()))
        grads.append(padded.grad.tolist())
    assert losses[0] == losses[1]
    assert grads[0] == grads[1]


def test_length_alpha_counts_the_overhang_less():
    made = make_pairs(LOGPROBS, SAMPLES, 3, CHOSEN, REJECTED, length_alpha=0.5)
    assert [-1.5 + 0.5 * -2.0, -3.5] == pytest.approx(made.chosen.tolist())
    assert [-1.5, -3.8 + 0.5 * -0.1] == pytest.approx(made.rejected.tolist())


def test_length_alpha_has_gradient_one_inside_and_alpha_outside_the_shared_length():
    logprobs = LOGPROBS.clone().requires_grad_()
    rows, shared = torch.tensor([2]), torch.tensor([3])
    desensitised_logprobs(logprobs, SAMPLES, 3, rows, shared, alpha=0.25).sum().backward()
    assert [0, 0, 0, 0, 0, 1, 1, 1, 0.25] == pytest.approx(logprobs.grad.tolist())


def test_length_alpha_one_is_the_plain_sum_even_for_unordered_rows():
    order = torch.tensor([8, 0, 3, 5, 1, 2, 6, 4, 7])
    plain = make_pairs(LOGPROBS, SAMPLES, 3, CHOSEN, REJECTED)
    mixed = make_pairs(LOGPROBS[order], SAMPLES[order], 3, CHOSEN, REJECTED)
    assert plain.rejected.tolist() == pytest.approx(mixed.rejected.tolist())


def test_length_alpha_refuses_unordered_rows():
    with pytest.raises(ValueError, match="ascending"):
        make_pairs(LOGPROBS, SAMPLES.flip(0), 3, CHOSEN, REJECTED, length_alpha=0.5)


def test_log_collision_is_the_log_of_summed_squares():
    logits = f64([[1.0, 0.0, -2.0], [3.0, 3.0, 3.0]])
    assert logits.softmax(-1).square().sum(-1).log().tolist() == pytest.approx(log_collision(logits).tolist())


def test_wpo_weight_is_the_product_of_both_answers_mean_aligned_probabilities():
    collision = torch.full_like(LOGPROBS, -0.1)
    weights = wpo_weights(LOGPROBS, SAMPLES, 3, CHOSEN, REJECTED, log_collision=collision)
    expected = [math.exp(-3.5 / 3 + 0.1 - 1.5 / 2 + 0.1), math.exp(-3.5 / 3 + 0.1 - 3.9 / 4 + 0.1)]
    assert expected == pytest.approx(weights.tolist())


def test_wpo_weight_is_at_most_one_and_without_gradient():
    logprobs = LOGPROBS.clone().requires_grad_()
    weights = wpo_weights(logprobs, SAMPLES, 3, CHOSEN, REJECTED, log_collision=torch.full_like(LOGPROBS, -9.0))
    assert [1.0, 1.0] == weights.tolist()
    assert not weights.requires_grad


def test_metrics_report_rewards_margins_and_the_token_gap():
    metrics = pair_metrics(pairs(), beta=0.1)
    assert [0.05, -0.05, 0.1, 0.1] == pytest.approx(metrics["chosen_reward"].tolist())
    assert [-0.1, 0.02, -0.3, -0.15] == pytest.approx(metrics["rejected_reward"].tolist())
    assert [0.15, -0.07, 0.4, 0.25] == pytest.approx(metrics["margin"].tolist())
    assert [1.0, 0.0, 1.0, 1.0] == metrics["accuracy"].tolist()
    assert [-2.0, -1.0, -14.0, -5.0] == metrics["token_gap"].tolist()


def test_at_the_start_every_pair_is_a_tie_and_none_is_accurate():
    start = pairs()
    start = replace(start, ref_chosen=start.chosen, ref_rejected=start.rejected)
    metrics = pair_metrics(start, beta=0.1)
    assert [0.0] * 4 == metrics["accuracy"].tolist()
    assert [1.0] * 4 == metrics["tie"].tolist()


def test_without_a_reference_rewards_are_of_the_log_probability():
    metrics = pair_metrics(pairs(ref_chosen=None, ref_rejected=None), beta=0.1)
    assert [0.2, -0.05, 0.5, 0.4] == pytest.approx(metrics["margin"].tolist())


def test_metrics_carry_no_gradient():
    metrics = pair_metrics(pairs(chosen=f64([-12.0, -8.5, -20.0, -5.0]).requires_grad_()), beta=0.1)
    assert not any(value.requires_grad for value in metrics.values())
