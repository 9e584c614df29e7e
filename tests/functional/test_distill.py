"""Divergences: closed-form gradients, ends and symmetry, impossible tokens, tiles that keep memory small."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from posttrain.functional.distill import (
    entropy,
    forward_kl,
    geometric_mixture,
    jsd,
    kl,
    log_softmax,
    reverse_kl,
)
from posttrain.functional.distill_tiles import in_tiles, tiled_divergence
from tests.golden.fixtures_preference import f64

STUDENT = f64([[1.0, -0.5, 0.3, 2.0], [0.1, 0.2, -3.0, 0.0]])
TEACHER = f64([[0.2, 0.5, -1.3, 1.0], [-2.0, 1.2, 0.4, 0.0]])
P, Q = STUDENT.softmax(-1), TEACHER.softmax(-1)
NEVER = -math.inf
DIVERGENCES = {"forward": forward_kl, "reverse": reverse_kl, "jsd": jsd}


def gradient(divergence, student=STUDENT, teacher=TEACHER, **options):
    logits = student.clone().requires_grad_()
    divergence(logits, teacher, **options).sum().backward()
    return logits.grad


def test_kl_agrees_with_torch():
    expected = torch.nn.functional.kl_div(
        STUDENT.log_softmax(-1), TEACHER.log_softmax(-1), log_target=True, reduction="none"
    )
    assert expected.sum(-1).tolist() == pytest.approx(forward_kl(STUDENT, TEACHER).tolist())


def test_forward_kl_gradient_is_student_minus_teacher():
    assert torch.allclose(P - Q, gradient(forward_kl), atol=1e-12)


def test_reverse_kl_gradient_is_p_times_the_centred_log_ratio():
    ratio = (P / Q).log()
    expected = P * (ratio - (P * ratio).sum(-1, keepdim=True))
    assert torch.allclose(expected, gradient(reverse_kl), atol=1e-12)


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_jsd_gradients_agree_with_finite_differences(beta):
    assert torch.autograd.gradcheck(lambda s: jsd(s, TEACHER, beta=beta), STUDENT.clone().requires_grad_())


def test_jsd_at_one_half_is_symmetric():
    assert jsd(STUDENT, TEACHER).tolist() == pytest.approx(jsd(TEACHER, STUDENT).tolist())


def test_jsd_swaps_its_sides_with_beta():
    assert jsd(STUDENT, TEACHER, beta=0.2).tolist() == pytest.approx(jsd(TEACHER, STUDENT, beta=0.8).tolist())


def test_jsd_is_forward_kl_at_0_and_reverse_kl_at_1():
    assert forward_kl(STUDENT, TEACHER).tolist() == jsd(STUDENT, TEACHER, beta=0.0).tolist()
    assert reverse_kl(STUDENT, TEACHER).tolist() == jsd(STUDENT, TEACHER, beta=1.0).tolist()


def test_continuous_jsd_joins_both_ends():
    near = jsd(STUDENT, TEACHER, beta=1e-7, continuous=True)
    far = jsd(STUDENT, TEACHER, beta=1 - 1e-7, continuous=True)
    assert forward_kl(STUDENT, TEACHER).tolist() == pytest.approx(near.tolist(), rel=1e-5)
    assert reverse_kl(STUDENT, TEACHER).tolist() == pytest.approx(far.tolist(), rel=1e-5)


@pytest.mark.parametrize("beta", [-0.1, 1.1])
def test_a_beta_outside_is_refused(beta):
    with pytest.raises(ValueError, match="between 0"):
        jsd(STUDENT, TEACHER, beta=beta)


@pytest.mark.parametrize("divergence", DIVERGENCES.values(), ids=DIVERGENCES.keys())
def test_equal_distributions_are_at_distance_zero_with_zero_gradient(divergence):
    assert [0.0, 0.0] == pytest.approx(divergence(STUDENT, STUDENT).tolist(), abs=1e-15)
    assert torch.allclose(torch.zeros_like(STUDENT), gradient(divergence, teacher=STUDENT), atol=1e-15)


@pytest.mark.parametrize("divergence", DIVERGENCES.values(), ids=DIVERGENCES.keys())
def test_a_constant_added_to_logits_changes_nothing(divergence):
    assert divergence(STUDENT, TEACHER).tolist() == pytest.approx(divergence(STUDENT + 7, TEACHER - 3).tolist())


@pytest.mark.parametrize("divergence", DIVERGENCES.values(), ids=DIVERGENCES.keys())
def test_tokens_impossible_on_both_sides_add_nothing_and_no_nan(divergence):
    padding = torch.full((2, 2), NEVER, dtype=torch.float64)
    student, teacher = torch.cat([STUDENT, padding], 1), torch.cat([TEACHER, padding], 1)
    assert divergence(STUDENT, TEACHER).tolist() == pytest.approx(divergence(student, teacher).tolist())
    assert torch.allclose(gradient(divergence), gradient(divergence, student, teacher)[:, :4])


def test_a_teacher_token_of_probability_zero_leaves_forward_kl_finite():
    teacher = f64([[0.2, NEVER, -1.3, 1.0]])
    assert torch.isfinite(forward_kl(STUDENT[:1], teacher)).all()
    assert torch.isfinite(gradient(forward_kl, STUDENT[:1], teacher)).all()


def test_reverse_kl_is_infinite_where_only_the_student_may_go():
    assert [math.inf] == reverse_kl(STUDENT[:1], f64([[0.2, NEVER, -1.3, 1.0]])).tolist()


def test_the_teacher_has_no_gradient():
    teacher = TEACHER.clone().requires_grad_()
    reverse_kl(STUDENT.clone().requires_grad_(), teacher).sum().backward()
    assert teacher.grad is None


def test_half_precision_logits_are_widened():
    assert reverse_kl(STUDENT.bfloat16(), TEACHER.bfloat16()).dtype == torch.float32


def test_temperature_divides_both_sides_and_its_gradient():
    expected = ((STUDENT / 2).softmax(-1) - (TEACHER / 2).softmax(-1)) / 2
    assert torch.allclose(expected, gradient(forward_kl, temperature=2.0), atol=1e-12)


def test_different_vocabularies_and_temperatures_are_refused():
    with pytest.raises(ValueError, match="one vocabulary"):
        forward_kl(STUDENT, TEACHER[:, :3])
    with pytest.raises(ValueError, match="positive"):
        forward_kl(STUDENT, TEACHER, temperature=0.0)


def test_entropy_of_a_uniform_distribution_is_the_log_of_its_size():
    assert [math.log(8)] == pytest.approx(entropy(log_softmax(torch.zeros(1, 8))).tolist())


def test_several_teachers_amount_to_their_geometric_mixture():
    teachers = torch.stack([TEACHER.log_softmax(-1), STUDENT.flip(-1).log_softmax(-1)])
    student = STUDENT.log_softmax(-1)
    mixture, constant = geometric_mixture(teachers, f64([0.3, 0.7]))
    expected = 0.3 * kl(student, teachers[0]) + 0.7 * kl(student, teachers[1])
    assert expected.tolist() == pytest.approx((kl(student, mixture) + constant).tolist())
    assert [1.0, 1.0] == pytest.approx(mixture.exp().sum(-1).tolist())


def test_teacher_weights_must_sum_to_one():
    with pytest.raises(ValueError, match="sum to 1"):
        geometric_mixture(TEACHER.log_softmax(-1)[None], f64([0.9]))


class LargestTensor(TorchDispatchMode):
    """Remembers the size of the largest tensor that any operation made."""

    def __init__(self):
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        made = operation(*arguments, **(options or {}))
        for tensor in made if isinstance(made, tuple | list) else [made]:
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.numel())
        return made


TOKENS, WIDTH, VOCABULARY = 24, 3, 50


@pytest.fixture
def tiles():
    """Hidden states and heads of a student and a (wider) teacher, in float64."""
    generator = torch.Generator().manual_seed(1)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return draw(TOKENS, WIDTH), draw(VOCABULARY, WIDTH), draw(TOKENS, WIDTH + 2), draw(VOCABULARY, WIDTH + 2)


def run_tiled(tiles, divergence, tile):
    hidden, head = tiles[0].clone().requires_grad_(), tiles[1].clone().requires_grad_()
    losses = tiled_divergence(divergence, hidden, lambda h: h @ head.T, tiles[2], lambda h: h @ tiles[3].T, tile=tile)
    (losses * torch.linspace(0.1, 1.0, TOKENS, dtype=torch.float64)).sum().backward()
    return losses.detach(), hidden.grad, head.grad


@pytest.mark.parametrize("divergence", DIVERGENCES.values(), ids=DIVERGENCES.keys())
@pytest.mark.parametrize("tile", [1, 7, 24, 100])
def test_tiles_change_neither_values_nor_gradients(tiles, divergence, tile):
    hidden, head = tiles[0].clone().requires_grad_(), tiles[1].clone().requires_grad_()
    losses = divergence(hidden @ head.T, tiles[2] @ tiles[3].T)
    (losses * torch.linspace(0.1, 1.0, TOKENS, dtype=torch.float64)).sum().backward()
    for expected, actual in zip((losses, hidden.grad, head.grad), run_tiled(tiles, divergence, tile), strict=True):
        assert torch.allclose(expected, actual, rtol=0, atol=1e-12)


def test_no_tensor_is_larger_than_a_tile_of_logits_forward_or_backward(tiles):
    with LargestTensor() as watch:
        run_tiled(tiles, reverse_kl, 8)
    assert watch.largest == 8 * VOCABULARY


def test_the_watch_sees_the_whole_logits_without_tiles(tiles):
    with LargestTensor() as watch:
        run_tiled(tiles, reverse_kl, TOKENS)
    assert watch.largest == TOKENS * VOCABULARY


def test_nothing_of_the_vocabulary_is_kept_for_the_backward_pass(tiles):
    kept = []
    hidden = tiles[0].clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        tiled_divergence(reverse_kl, hidden, lambda h: h @ tiles[1].T, tiles[2], lambda h: h @ tiles[3].T, tile=4).sum()
    assert max(kept, default=0) < 4 * VOCABULARY


def test_no_tokens_give_a_loss_of_zero_with_a_graph():
    hidden = torch.zeros(0, WIDTH, requires_grad=True)
    head = torch.ones(VOCABULARY, WIDTH, requires_grad=True)
    tiled_divergence(reverse_kl, hidden, lambda h: h @ head.T, hidden, lambda h: h @ head.T).sum().backward()
    assert float(head.grad.abs().sum()) == 0.0


def test_the_teachers_head_gets_no_gradient(tiles):
    head = tiles[3].clone().requires_grad_()
    hidden = tiles[0].clone().requires_grad_()
    tiled_divergence(
        reverse_kl, hidden, lambda h: h @ tiles[1].T, tiles[2], lambda h: h @ head.T, tile=5
    ).sum().backward()
    assert head.grad is None


def test_tiles_refuse_tensors_of_different_length():
    with pytest.raises(ValueError, match="one length"):
        in_tiles(lambda a, b: a, torch.zeros(2), torch.zeros(3), tile=1)
    with pytest.raises(ValueError, match="tile >= 1"):
        in_tiles(lambda a: a, torch.zeros(2), tile=0)
