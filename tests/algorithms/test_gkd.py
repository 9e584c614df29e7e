"""GKD: the golden divergences between the forward and the reverse KL, both ends by definition."""

import pytest
import torch

from posttrain.algorithms.gkd import GKD, Config
from tests.algorithms.distillation import FACTS, OTHER, OWN, distilled, facts, slope
from tests.algorithms.examples import group, value


def build(**options) -> GKD:
    return GKD(Config(**options))


@pytest.mark.parametrize(
    ("beta", "key"), [(0.5, "jsd.beta0.5"), (0.1, "jsd.beta0.1"), (0.9, "jsd.beta0.9"), (0, "fkl"), (1, "rkl")]
)
def test_the_divergence_is_the_golden_one(beta, key):
    actual = build(beta=beta).needs.divergence(OWN, OTHER)
    assert facts(f"{key}.per_token").tolist() == pytest.approx(actual.tolist(), abs=1e-9)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_the_loss_is_the_golden_one(mode):
    assert FACTS[f"jsd.beta0.5.{mode}"] == pytest.approx(value(distilled(build(reduction=mode))[0]), abs=1e-9)


def test_the_reverse_end_has_the_golden_gradient():
    loss, logits, _ = distilled(build(beta=1))
    expected = FACTS["grad.rkl(0,0)=s*(log(s/t)-RKL)"]
    assert expected == pytest.approx((5 * slope(loss, logits)[0]).tolist(), abs=1e-9)


@pytest.mark.parametrize("beta", [0, 1])
def test_an_agreeing_teacher_gives_exactly_nothing_at_the_ends(beta):
    loss, logits, _ = distilled(build(beta=beta), teacher=OWN)
    assert 0.0 == value(loss)
    assert not slope(loss, logits).any()


def test_an_agreeing_teacher_gives_nothing_but_rounding_between_them():
    loss, logits, _ = distilled(build(), teacher=OWN)
    assert 0.0 == pytest.approx(value(loss), abs=1e-15)
    assert float(slope(loss, logits).abs().max()) < 1e-15


def test_rows_add_up_to_the_batch():
    parts = [value(distilled(build(), rows=(row,))[0]) for row in (0, 1)]
    assert value(distilled(build())[0]) == pytest.approx(sum(parts), abs=1e-12)


def test_half_of_the_batches_are_sampled_and_none_is_scored():
    needs = build().needs
    assert (0.5, True, False) == (needs.on_policy, needs.demonstrated, needs.rewarded)


def test_all_batches_can_be_sampled():
    needs = build(on_policy=1.0).needs
    assert not needs.demonstrated


def test_there_are_no_advantages():
    assert [[0.0, 0.0]] == [[float(a) for a in row] for row in build().advantages([group([None, None])])]
    assert build().keep(group([None]))


def test_the_mean_divergence_is_reported():
    loss = distilled(build())[0]
    assert FACTS["jsd.beta0.5.token-mean"] == pytest.approx(loss.stats["kl_teacher"].result, abs=1e-9)
    assert value(loss) == loss.stats["loss"].result
    assert torch.isfinite(loss.total)
