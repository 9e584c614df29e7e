"""Sampled-token distillation: the identity with reverse KL by enumeration, returns to go, spans of other tokenizers."""

import itertools

import pytest
import torch

from posttrain.functional.distill import kl
from posttrain.functional.distill_aligned import shared_spans, sorted_l1, span_advantages
from posttrain.functional.distill_sampled import prefix_weights, return_to_go, sampled_advantage, start_gap
from tests.golden.fixtures_preference import f64

VOCABULARY, LENGTH = 3, 3
SAMPLES = torch.tensor([0, 0, 0, 2, 2])
ADVANTAGES = f64([1.0, -2.0, 0.5, 3.0, -1.0])


def tiny_policy(seed):
    """Logits by (previous token, token): a Markov policy small enough to enumerate every sequence."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(VOCABULARY + 1, VOCABULARY, generator=generator, dtype=torch.float64)


def token_logprobs(logits, sequence):
    previous = (VOCABULARY, *sequence[:-1])
    return logits.log_softmax(-1)[list(previous), list(sequence)]


def expected_gradient(advantage_of):
    """Gradient of E over all sequences of sum_t A_t log p(y_t), probabilities and advantages held fixed."""
    student, teacher = tiny_policy(0).requires_grad_(), tiny_policy(1)
    total = torch.zeros((), dtype=torch.float64)
    for sequence in itertools.product(range(VOCABULARY), repeat=LENGTH):
        logprobs, other = token_logprobs(student, sequence), token_logprobs(teacher, sequence)
        probability = logprobs.sum().exp().detach()
        total = total + probability * (advantage_of(other, logprobs) * logprobs).sum()
    total.backward()
    return student.grad


def exact_gradient(per_state):
    """Gradient of minus the summed KL over visited states, or of minus the whole sequence's KL."""
    student, teacher = tiny_policy(0).requires_grad_(), tiny_policy(1)
    total = torch.zeros((), dtype=torch.float64)
    states = kl(student.log_softmax(-1), teacher.log_softmax(-1))
    for sequence in itertools.product(range(VOCABULARY), repeat=LENGTH):
        probability = token_logprobs(student, sequence).sum().exp()
        visited = states[[VOCABULARY, *sequence[:-1]]].sum()
        total = total - (probability.detach() if per_state else probability) * visited
    total.backward()
    return student.grad


def to_go(other, logprobs):
    zeros = torch.zeros(LENGTH, dtype=torch.long)
    return return_to_go(sampled_advantage(other, logprobs), zeros, 1)


def test_sampled_advantages_have_the_gradient_of_reverse_kl_at_the_visited_states():
    assert torch.allclose(exact_gradient(per_state=True), expected_gradient(sampled_advantage), atol=1e-12)


def test_returns_to_go_have_the_gradient_of_the_whole_sequences_reverse_kl():
    assert torch.allclose(exact_gradient(per_state=False), expected_gradient(to_go), atol=1e-12)


def test_the_two_gradients_differ():
    assert not torch.allclose(exact_gradient(per_state=True), exact_gradient(per_state=False), atol=1e-3)


def test_a_baseline_of_reverse_kl_changes_no_expected_gradient():
    states = kl(tiny_policy(0).log_softmax(-1), tiny_policy(1).log_softmax(-1))

    def centred(other, logprobs):
        return sampled_advantage(other, logprobs, baseline=states[:1].expand(LENGTH))

    assert torch.allclose(expected_gradient(sampled_advantage), expected_gradient(centred), atol=1e-12)


def test_advantages_are_detached_clipped_then_scaled():
    student = f64([-1.0, -9.0, -0.5]).requires_grad_()
    advantage = sampled_advantage(f64([-2.0, -1.0, -0.5]), student, limit=5.0, coefficient=0.1)
    assert [-0.1, 0.5, 0.0] == pytest.approx(advantage.tolist())
    assert not advantage.requires_grad


def test_a_limit_of_nothing_is_refused():
    with pytest.raises(ValueError, match="limit"):
        sampled_advantage(ADVANTAGES, ADVANTAGES, limit=0.0)


def test_returns_to_go_stay_inside_a_row_and_skip_empty_rows():
    assert [-0.5, -1.5, 0.5, 2.0, -1.0] == return_to_go(ADVANTAGES, SAMPLES, 3).tolist()


def test_discounts_count_from_each_token_not_from_the_start():
    expected = [1 - 0.5 * 2 + 0.25 * 0.5, -2 + 0.25, 0.5, 2.5, -1.0]
    assert expected == pytest.approx(return_to_go(ADVANTAGES, SAMPLES, 3, discount=0.5).tolist())


def test_discount_zero_is_the_advantage_itself():
    assert ADVANTAGES.tolist() == return_to_go(ADVANTAGES, SAMPLES, 3, discount=0.0).tolist()


def test_the_mean_return_of_a_constant_is_the_constant():
    constant = torch.full((5,), 0.7, dtype=torch.float64)
    assert [0.7] * 5 == pytest.approx(return_to_go(constant, SAMPLES, 3, discount=0.9, mean=True).tolist())


def test_returns_of_no_tokens_are_none():
    assert [] == return_to_go(f64([]), torch.zeros(0, dtype=torch.long), 0).tolist()


def test_returns_refuse_unordered_rows():
    with pytest.raises(ValueError, match="ascending"):
        return_to_go(ADVANTAGES, SAMPLES.flip(0), 3)


def test_prefix_weights_fall_along_each_row_from_one_plus_strength():
    expected = [1.5, 1 + 0.5 * (1 - 1 / 3.5), 1 + 0.5 * (1 - 3 / 3.5), 1.5, 1 + 0.5 * 0.25]
    assert expected == pytest.approx(prefix_weights(ADVANTAGES, SAMPLES, 3).tolist())


def test_prefix_weights_of_full_agreement_are_equal():
    assert [1.5] * 5 == prefix_weights(torch.zeros(5), SAMPLES, 3).tolist()


def test_the_start_gap_says_whether_the_teacher_is_far():
    near = start_gap(f64([-1.0, -1.1]), f64([-0.98, -1.04]))
    far = start_gap(f64([-1.0, -1.6]), f64([-0.9, -1.2]))
    assert (near.far, far.far) == (False, True)
    assert pytest.approx(near.reverse_kl) == 0.04


def test_the_start_gap_of_nothing_is_refused():
    with pytest.raises(ValueError, match="got none"):
        start_gap(f64([]), f64([]))


def test_sorted_distance_pads_the_smaller_vocabulary():
    assert [0.6] == pytest.approx(sorted_l1(f64([[0.1, 0.9]]), f64([[0.6, 0.1, 0.3]])).tolist())


def test_sorted_distance_moves_only_the_student():
    student, teacher = f64([[0.1, 0.9]]).requires_grad_(), f64([[0.5, 0.5]]).requires_grad_()
    sorted_l1(student, teacher).sum().backward()
    assert [[-1.0, 1.0]] == student.grad.tolist()
    assert teacher.grad is None


def test_equal_tokenisations_pair_token_by_token():
    assert [((0,), (0,)), ((1,), (1,))] == shared_spans([2, 5], [2, 5])


def test_a_rest_without_a_common_end_is_left_out():
    assert [((0,), (0, 1))] == shared_spans([4, 6], [2, 4, 7])


def test_offsets_must_ascend():
    with pytest.raises(ValueError, match="ascend"):
        shared_spans([3, 3], [3])


SPANS = [((0, 1), (0,)), ((2,), (1, 2))]
STUDENT_TOKENS, TEACHER_TOKENS = f64([-0.5, -0.7, -0.2, -0.1]), f64([-0.9, -0.3, -0.4])


def test_broadcast_gives_each_token_the_whole_span():
    expected = [0.3, 0.3, -0.5, 0.0]
    assert expected == pytest.approx(span_advantages(STUDENT_TOKENS, TEACHER_TOKENS, SPANS).tolist())


def test_divide_keeps_the_sum_of_the_spans():
    expected = [0.15, 0.15, -0.5, 0.0]
    assert expected == pytest.approx(span_advantages(STUDENT_TOKENS, TEACHER_TOKENS, SPANS, spread="divide").tolist())


def test_spans_of_one_token_are_plain_sampled_advantages():
    spans = shared_spans([1, 2, 3], [1, 2, 3])
    expected = sampled_advantage(TEACHER_TOKENS, STUDENT_TOKENS[:3])
    assert expected.tolist() == pytest.approx(span_advantages(STUDENT_TOKENS[:3], TEACHER_TOKENS, spans).tolist())


def test_an_unknown_spread_is_refused():
    with pytest.raises(ValueError, match="divide or broadcast"):
        span_advantages(STUDENT_TOKENS, TEACHER_TOKENS, SPANS, spread="sum")
