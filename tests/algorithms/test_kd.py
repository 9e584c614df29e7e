"""Knowledge distillation: the golden divergences, its gradient, and nothing at all where student and teacher agree."""

import pytest
import torch

from posttrain.algorithms.kd import KD, Config
from posttrain.functional.distill import forward_kl
from tests.algorithms.distillation import FACTS, OTHER, OWN, distilled, facts, slope
from tests.algorithms.examples import group, value


def build(**options) -> KD:
    return KD(Config(**options))


def test_the_divergence_is_the_golden_forward_kl():
    assert facts("fkl.per_token").tolist() == pytest.approx(build().needs.divergence(OWN, OTHER).tolist(), abs=1e-9)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_the_loss_is_the_golden_one(mode):
    assert FACTS[f"fkl.{mode}"] == pytest.approx(value(distilled(build(reduction=mode))[0]), abs=1e-9)


def test_a_temperature_is_made_good_by_its_square():
    expected = FACTS["fkl.tau2.token-mean (x1, x tau^2)"][1]
    assert expected == pytest.approx(value(distilled(build(temperature=2.0))[0]), abs=1e-9)


@pytest.mark.parametrize("tau", [1.0, 2.0])
def test_the_gradient_is_tau_times_the_difference_of_probabilities(tau):
    loss, logits, _ = distilled(build(temperature=tau))
    expected = tau * ((OWN / tau).softmax(-1) - (OTHER / tau).softmax(-1)) / 5
    assert torch.allclose(expected, slope(loss, logits), atol=1e-12, rtol=0)


def test_the_gradient_is_the_one_of_the_plain_formula():
    leaf = OWN.clone().requires_grad_()
    (expected,) = torch.autograd.grad(forward_kl(leaf, OTHER).mean(), leaf)
    loss, logits, _ = distilled(build())
    assert torch.allclose(expected, slope(loss, logits), atol=1e-12, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_agreeing_teacher_gives_exactly_nothing(dtype):
    loss, logits, _ = distilled(build(), student=OWN.to(dtype), teacher=OWN.to(dtype))
    assert 0.0 == value(loss)
    assert not slope(loss, logits).any()


def test_the_likelihood_is_added_with_its_own_weights():
    kd = build(likelihood_coefficient=0.5)
    loss, _, logprobs = distilled(kd)
    assert {"distillation", "nll"} == set(kd.needs.streams)
    assert FACTS["fkl.token-mean"] - 0.5 * float(logprobs.detach().mean()) == pytest.approx(value(loss), abs=1e-9)
    assert value(loss) == pytest.approx(loss.stats["loss/distillation"].result + loss.stats["loss/nll"].result)


def test_rows_add_up_to_the_batch():
    parts = [value(distilled(build(), rows=(row,))[0]) for row in (0, 1)]
    assert value(distilled(build())[0]) == pytest.approx(sum(parts), abs=1e-12)


def test_the_mean_divergence_is_reported():
    stat = distilled(build())[0].stats["kl_teacher"]
    assert (FACTS["fkl.token-mean"], 5) == (pytest.approx(stat.result, abs=1e-9), stat.count)


def test_it_reads_demonstrations_and_has_no_advantages():
    kd = build()
    assert not kd.needs.engine
    assert kd.keep(group([None]))
    assert [[0.0]] == [[float(a) for a in row] for row in kd.advantages([group([None])])]
