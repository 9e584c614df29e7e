"""Pair losses: gradients, start values, special cases, refused settings."""

import math

import pytest
import torch

from posttrain.functional import preference_free as free
from posttrain.functional import preference_pairs as losses
from posttrain.functional.preference_lists import plackett_luce, softmax_negatives
from tests.golden.fixtures_preference import f64, pairs

GRAD_FIELDS = ("chosen", "rejected")
REFERENCED = {
    "dpo": losses.dpo,
    "cdpo": losses.cdpo,
    "robust": losses.robust,
    "hinge": losses.hinge,
    "ipo_sum": losses.ipo_sum,
    "ipo_average": losses.ipo_average,
    "dpo_normalised": losses.dpo_normalised,
    "dpo_positive": losses.dpo_positive,
    "nca": losses.nca,
    "bco_pair": losses.bco_pair,
    "sppo": losses.sppo,
    "apo_zero": losses.apo_zero,
    "apo_down": losses.apo_down,
    "exo": losses.exo,
    "f_forward": lambda p: losses.f_dpo(p, divergence="forward_kl"),
    "f_jensen_shannon": lambda p: losses.f_dpo(p, divergence="jensen_shannon"),
    "f_alpha": lambda p: losses.f_dpo(p, divergence="alpha", alpha=0.3),
}
FREE = {"simpo": free.simpo, "cpo": free.cpo, "odds_ratio": free.odds_ratio, "orpo": free.orpo}


def gradients(loss, **values):
    """Gradients by the summed log-probabilities of both answers."""
    leaves = {name: getattr(pairs(**values), name).clone().requires_grad_() for name in GRAD_FIELDS}
    loss(pairs(**(values | leaves))).sum().backward()
    return leaves["chosen"].grad, leaves["rejected"].grad


@pytest.mark.parametrize("loss", (REFERENCED | FREE).values(), ids=(REFERENCED | FREE).keys())
def test_gradients_agree_with_finite_differences(loss):
    leaves = [pairs().chosen.clone().requires_grad_(), pairs().rejected.clone().requires_grad_()]
    assert torch.autograd.gradcheck(lambda c, r: loss(pairs(chosen=c, rejected=r)), leaves)


@pytest.mark.parametrize("loss", REFERENCED.values(), ids=REFERENCED.keys())
def test_a_constant_added_to_policy_and_reference_changes_nothing(loss):
    moved = pairs()
    moved = pairs(chosen=moved.chosen - 3, ref_chosen=moved.ref_chosen - 3)
    assert loss(pairs()).tolist() == pytest.approx(loss(moved).tolist())


@pytest.mark.parametrize("loss", (REFERENCED | FREE).values(), ids=(REFERENCED | FREE).keys())
def test_extreme_sums_stay_finite_in_value_and_gradient(loss):
    far = {"chosen": f64([-5000.0, -1.0, -3000.0, -2.0]), "rejected": f64([-1.0, -5000.0, -2.0, -3000.0])}
    assert torch.isfinite(loss(pairs(**far))).all()
    assert all(torch.isfinite(gradient).all() for gradient in gradients(loss, **far))


def test_dpo_gradient_is_minus_beta_sigmoid_of_minus_the_margin():
    chosen, rejected = gradients(losses.dpo)
    expected = -0.1 * torch.sigmoid(-0.1 * pairs().gap)
    assert expected.tolist() == pytest.approx(chosen.tolist())
    assert (-expected).tolist() == pytest.approx(rejected.tolist())


@pytest.mark.parametrize("loss", [losses.dpo, losses.cdpo, losses.robust, losses.dpo_normalised])
def test_where_policy_equals_reference_the_loss_is_ln_2(loss):
    start = pairs(ref_chosen=pairs().chosen, ref_rejected=pairs().rejected)
    assert [math.log(2)] * 4 == pytest.approx(loss(start).tolist())


def test_without_flips_cdpo_and_robust_are_dpo():
    expected = losses.dpo(pairs()).tolist()
    assert expected == pytest.approx(losses.cdpo(pairs(), flip=0.0).tolist())
    assert expected == pytest.approx(losses.robust(pairs(), flip=0.0).tolist())


def test_robust_is_unbiased_over_flipped_labels():
    swapped = pairs(
        chosen=pairs().rejected,
        rejected=pairs().chosen,
        ref_chosen=pairs().ref_rejected,
        ref_rejected=pairs().ref_chosen,
    )
    mean = 0.8 * losses.robust(pairs(), flip=0.2) + 0.2 * losses.robust(swapped, flip=0.2)
    assert losses.dpo(pairs()).tolist() == pytest.approx(mean.tolist())


def test_cdpo_is_least_at_the_logit_of_the_label():
    chosen = f64([math.log(9) / 0.1] * 4).requires_grad_()
    zero = torch.zeros(4, dtype=torch.float64)
    losses.cdpo(pairs(chosen=chosen, rejected=zero, ref_chosen=zero, ref_rejected=zero), flip=0.1).sum().backward()
    assert [0.0] * 4 == pytest.approx(chosen.grad.tolist(), abs=1e-12)


@pytest.mark.parametrize("flip", [-0.1, 0.5, 0.7])
@pytest.mark.parametrize("loss", [losses.cdpo, losses.robust])
def test_an_impossible_share_of_flips_is_refused(loss, flip):
    with pytest.raises(ValueError, match="flipped"):
        loss(pairs(), flip=flip)


def test_exo_refuses_hard_labels():
    with pytest.raises(ValueError, match="smoothing"):
        losses.exo(pairs(), smoothing=0.0)


def test_exo_is_zero_where_the_margin_is_the_smoothed_label():
    zero = torch.zeros(4, dtype=torch.float64)
    exact = pairs(chosen=zero + math.log(99) / 0.1, rejected=zero, ref_chosen=zero, ref_rejected=zero)
    assert [0.0] * 4 == pytest.approx(losses.exo(exact, smoothing=0.01).tolist(), abs=1e-12)


def test_dpo_positive_is_dpo_while_the_chosen_answer_gained():
    gained = pairs().chosen_log_ratio > 0
    assert losses.dpo(pairs())[gained].tolist() == pytest.approx(losses.dpo_positive(pairs())[gained].tolist())


def test_dpo_positive_pulls_a_fallen_chosen_answer_up_harder():
    assert gradients(losses.dpo_positive)[0][1] < gradients(losses.dpo)[0][1]


def test_sppo_with_an_even_win_rate_pulls_both_to_the_reference():
    expected = pairs().chosen_log_ratio ** 2 + pairs().rejected_log_ratio ** 2
    assert expected.tolist() == pytest.approx(losses.sppo(pairs(), win_rate=0.5).tolist())


def test_bco_shift_moves_both_classes():
    moved = losses.bco_pair(pairs(), shift=0.2)
    chosen, rejected = 0.1 * pairs().chosen_log_ratio, 0.1 * pairs().rejected_log_ratio
    expected = torch.log1p(torch.exp(0.2 - chosen)) + torch.log1p(torch.exp(rejected - 0.2))
    assert expected.tolist() == pytest.approx(moved.tolist())


def test_apo_down_lowers_the_chosen_answer_where_apo_zero_raises_it():
    assert (gradients(losses.apo_zero)[0] < 0).all()
    settled = {"rejected": pairs().chosen - 60, "ref_rejected": pairs().ref_chosen}
    assert (gradients(losses.apo_down, **settled)[0] > 0).all()


def test_reverse_kl_among_f_divergences_is_dpo():
    assert losses.dpo(pairs()).tolist() == losses.f_dpo(pairs(), divergence="reverse_kl").tolist()


def test_alpha_divergence_runs_from_reverse_to_forward_kl():
    def loss(alpha: float) -> list[float]:
        return losses.f_dpo(pairs(), divergence="alpha", alpha=alpha).tolist()

    assert losses.dpo(pairs()).tolist() == pytest.approx(loss(1e-9), abs=1e-6)
    assert losses.f_dpo(pairs(), divergence="forward_kl").tolist() == pytest.approx(loss(1 - 1e-9), abs=1e-6)


@pytest.mark.parametrize(
    ("divergence", "generator"),
    [
        ("reverse_kl", lambda u: u * math.log(u)),
        ("forward_kl", lambda u: -math.log(u)),
        ("jensen_shannon", lambda u: u * math.log(u) - (u + 1) * math.log((u + 1) / 2)),
        ("alpha", lambda u: (u**0.7 - 0.7 * u - 0.3) / (0.3 * -0.7)),
    ],
)
def test_slopes_are_derivatives_of_the_generators_up_to_a_constant(divergence, generator):
    def numeric(u: float) -> float:
        return (generator(u + 1e-6) - generator(u - 1e-6)) / 2e-6

    slope = losses.divergence_slope(f64([math.log(0.4), math.log(1.7)]), divergence, alpha=0.3)
    assert numeric(1.7) - numeric(0.4) == pytest.approx(float(slope[1] - slope[0]), abs=1e-8)


def test_unknown_divergences_and_alphas_are_refused():
    with pytest.raises(ValueError, match="hellinger"):
        losses.f_dpo(pairs(), divergence="hellinger")
    with pytest.raises(ValueError, match="alpha"):
        losses.f_dpo(pairs(), divergence="alpha", alpha=1.0)


def test_batch_token_mean_nll_adds_up_over_any_split():
    whole = losses.chosen_nll(pairs(), "batch_token_mean", batch_pairs=4, batch_tokens=35).mean()
    assert 45.5 / 35 == pytest.approx(float(whole))


def test_nll_normalisers_weigh_long_answers_differently():
    by_sum = losses.chosen_nll(pairs(), "sequence_sum")
    by_mean = losses.chosen_nll(pairs(), "sequence_mean")
    assert [12.0, 8.5, 20.0, 5.0] == by_sum.tolist()
    assert [1.2, 1.7, 1.25, 1.25] == pytest.approx(by_mean.tolist())


def test_nll_refuses_an_unknown_normaliser_or_missing_counts():
    with pytest.raises(ValueError, match="whole step"):
        losses.chosen_nll(pairs(), "batch_token_mean")
    with pytest.raises(ValueError, match="unknown"):
        losses.chosen_nll(pairs(), "mean")


def test_simpo_needs_no_reference_and_sees_averages_only():
    doubled = pairs(chosen=pairs().chosen * 2, chosen_count=pairs().chosen_count * 2, ref_chosen=None)
    assert free.simpo(pairs()).tolist() == pytest.approx(free.simpo(doubled).tolist())


def test_orpo_with_weight_zero_is_the_mean_nll():
    assert (-pairs().chosen_average).tolist() == free.orpo(pairs(), weight=0.0).tolist()


def test_log1mexp_is_exact_near_zero_and_far_below():
    values = f64([-1e-12, -1e-3, -0.69, -0.7, -5.0, -800.0])
    expected = [math.log(-math.expm1(x)) if x > -0.5 else math.log1p(-math.exp(x)) for x in values.tolist()]
    assert expected == pytest.approx(free.log1mexp(values).tolist(), rel=1e-12)


def test_log1mexp_of_certainty_is_finite_with_finite_gradient():
    certain = f64([0.0, -1e-300]).requires_grad_()
    values = free.log1mexp(certain)
    values.sum().backward()
    assert torch.isfinite(values).all()
    assert torch.isfinite(certain.grad).all()


def test_two_ranked_answers_are_dpo():
    scores = torch.stack([0.1 * pairs().chosen_log_ratio, 0.1 * pairs().rejected_log_ratio], dim=1).flatten()
    groups = torch.arange(4).repeat_interleave(2)
    ranks = torch.tensor([0, 1] * 4)
    expected = losses.dpo(pairs()).tolist()
    assert expected == pytest.approx(plackett_luce(scores, ranks, groups, 4).tolist())
    assert expected == pytest.approx(softmax_negatives(scores, ranks == 0, groups, 4).tolist())
