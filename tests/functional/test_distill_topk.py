"""A few tokens per position: which treatments may be negative, how they compare with the whole vocabulary."""

import math

import pytest
import torch

from posttrain.functional.distill import kl
from posttrain.functional.distill_topk import generalised_kl, support_overlap, topk_divergence, with_tail
from tests.golden.fixtures_preference import f64

GENERATOR = torch.Generator().manual_seed(3)
STUDENT = (2 * torch.randn(300, 12, generator=GENERATOR, dtype=torch.float64)).log_softmax(-1)
TEACHER = (2 * torch.randn(300, 12, generator=GENERATOR, dtype=torch.float64)).log_softmax(-1)
FULL = {"forward": kl(TEACHER, STUDENT), "reverse": kl(STUDENT, TEACHER)}
DIRECTIONS = ("forward", "reverse")


def support(count, by=TEACHER):
    ids = by.topk(count).indices
    return STUDENT.gather(1, ids), TEACHER.gather(1, ids)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("count", [1, 3, 11])
@pytest.mark.parametrize("by", [STUDENT, TEACHER], ids=["student", "teacher"])
def test_the_tail_bucket_lies_between_zero_and_the_full_divergence(direction, count, by):
    value = topk_divergence(*support(count, by), direction=direction)
    assert bool((value >= 0).all())
    assert bool((value <= FULL[direction] + 1e-9).all())


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_more_tokens_bring_the_tail_bucket_closer(direction):
    values = [topk_divergence(*support(count), direction=direction).mean() for count in (1, 3, 6, 11)]
    assert values == sorted(values)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_with_the_whole_vocabulary_there_is_no_tail(direction):
    value = topk_divergence(*support(12), direction=direction, complete=True)
    assert torch.allclose(FULL[direction], value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_tail_of_nothing_is_finite_in_value_and_gradient(direction):
    student, teacher = support(12)
    leaf = student.clone().requires_grad_()
    value = topk_divergence(leaf, teacher, direction=direction)
    value.sum().backward()
    assert torch.allclose(FULL[direction], value, atol=1e-9)
    assert torch.isfinite(leaf.grad).all()


@pytest.mark.parametrize("rest", ["renormalised", "tail", "generalised"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_near_equal_sides_never_round_below_zero(rest, direction, dtype):
    student, _ = support(4)
    nudged = student + 1e-9 * torch.randn(student.shape, generator=GENERATOR, dtype=torch.float64)
    value = topk_divergence(student.to(dtype), nudged.to(dtype), direction=direction, rest=rest)
    assert bool((value >= 0).all())


def test_the_truncated_sum_can_be_negative():
    student, teacher = support(2, STUDENT)
    assert bool((topk_divergence(student, teacher, direction="forward", rest="truncated") < 0).any())


def test_lifting_a_negative_rounding_keeps_the_gradient():
    student, _ = support(4)
    leaf = student.float().requires_grad_()
    topk_divergence(leaf, leaf.detach() + 1e-4, direction="reverse", rest="generalised").sum().backward()
    expected = (leaf.exp() * -1e-4).detach()
    assert torch.allclose(expected, leaf.grad, atol=1e-7)


def test_renormalised_is_blind_to_the_mass_outside():
    student, teacher = support(3)
    value = topk_divergence(student - 5, teacher, direction="forward", rest="renormalised")
    assert torch.allclose(topk_divergence(student, teacher, direction="forward", rest="renormalised"), value)
    assert bool((topk_divergence(student - 5, teacher, direction="forward") > value).all())


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("rest", ["truncated", "renormalised", "tail", "generalised"])
def test_gradients_agree_with_finite_differences(direction, rest):
    student, teacher = support(3)

    def value(leaf):
        return topk_divergence(leaf, teacher[:5], direction=direction, rest=rest)

    assert torch.autograd.gradcheck(value, student[:5].clone().requires_grad_())


def test_an_impossible_teacher_token_makes_reverse_kl_infinite_not_nan():
    student, teacher = f64([[-1.0, -1.0]]), f64([[-0.5, -math.inf]])
    assert [math.inf] == topk_divergence(student, teacher, direction="reverse").tolist()


def test_with_tail_sums_to_one():
    assert torch.allclose(torch.ones(300, dtype=torch.float64), with_tail(support(4)[0]).exp().sum(-1))


def test_generalised_kl_is_kl_between_distributions():
    assert torch.allclose(kl(STUDENT, TEACHER), generalised_kl(STUDENT, TEACHER), atol=1e-12)


def test_overlap_is_the_share_of_common_tokens():
    student, teacher = torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([[3, 1, 9], [7, 8, 9]])
    assert [2 / 3, 0.0] == pytest.approx(support_overlap(student, teacher).tolist())


@pytest.mark.parametrize(
    ("options", "message"),
    [({"direction": "both"}, "forward or reverse"), ({"direction": "forward", "rest": "drop"}, "unknown rest")],
)
def test_unknown_names_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        topk_divergence(*support(2), **options)


def test_different_supports_are_refused():
    with pytest.raises(ValueError, match="same k tokens"):
        topk_divergence(support(2)[0], support(3)[1], direction="forward")
