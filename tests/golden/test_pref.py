"""Golden values of preferences, reward models and votes: every key of golden_pref is computed here or explained."""

import math

import numpy as np
import pytest
import torch

from posttrain.functional import preference_free as free
from posttrain.functional import preference_pairs as losses
from posttrain.functional.passk import best_of_n, pass_at_k, pass_hat_k
from posttrain.functional.preference import make_pairs, pair_metrics
from posttrain.functional.preference_beta import GapMoments, dynamic_beta, log_typicality
from posttrain.functional.preference_images import mdpo
from posttrain.functional.preference_lists import all_pairs, plackett_luce, softmax_negatives
from posttrain.functional.preference_unpaired import kto, kto_baseline
from posttrain.functional.reward_ensembles import combine, normalise_members
from posttrain.functional.reward_models import (
    bradley_terry,
    rollout_labels,
    step_losses,
    two_class_step_losses,
    until_first_error,
)
from posttrain.functional.search import AGGREGATIONS, best_of_n_kl_bound, pick_best, vote_totals, vote_winner
from tests.golden import fixtures_preference as fx
from tests.golden.fixtures_preference import close, f64, golden, pairs, plain

FACTS = golden("pref")
PAIRS = pairs()
WINNER = torch.tensor([True, False, False, False])
BASELINE = kto_baseline(fx.KTO_MISMATCHED)
VALUES = [1, 0, 1, 0, 0, 0]


def nll(normaliser: str) -> float:
    extra = losses.chosen_nll(PAIRS, normaliser, batch_pairs=4, batch_tokens=int(PAIRS.chosen_count.sum()))
    return float((losses.dpo(PAIRS) + 0.2 * extra).mean())


def gradient(loss, scores: torch.Tensor) -> torch.Tensor:
    leaf = scores.clone().requires_grad_()
    loss(leaf).sum().backward()
    return leaf.grad


def dpo_slope() -> torch.Tensor:
    return gradient(lambda chosen: losses.dpo(pairs(chosen=chosen)), PAIRS.chosen)


def start() -> float:
    same = pairs(ref_chosen=PAIRS.chosen, ref_rejected=PAIRS.rejected)
    return float(losses.dpo(same)[0])


def desensitised() -> list[float]:
    tokens = f64([-1.0, -0.5, -2.0, -0.3, -1.2, -0.8, -2.0, -1.0])
    rows = torch.tensor([0] * 3 + [1] * 5)
    made = make_pairs(tokens, rows, 2, torch.tensor([0]), torch.tensor([1]), length_alpha=0.5)
    return [float(made.chosen), float(made.rejected)]


def trace() -> list[dict]:
    """beta-DPO step by step, with the debiased numbers and those of the repository's start from zero."""
    moments, rows = GapMoments(), []
    for gaps in fx.GAPS:
        moments = moments.observe(gaps)
        raw = ((gaps - moments.raw_mean) / moments.raw_deviation) ** 2
        rows.append(
            {
                "mu": moments.raw_mean,
                "sd": moments.raw_deviation,
                "weights_repo": (-0.5 * raw).exp(),
                "weights_debiased": log_typicality(gaps, moments).exp(),
                "beta_repo(all kept)": max(1e-3, 0.1 * (1 + 0.6 * (float(gaps.mean()) - moments.raw_mean))),
                "beta_debiased(all kept)": dynamic_beta(float(gaps.mean()), moments),
            }
        )
    return rows


def image_terms() -> dict[str, float]:
    terms = mdpo(PAIRS, f64([-15.0] * 4), f64([-14.6] * 4))
    return {name: float(getattr(terms, name)[0]) for name in ("response", "image", "anchor", "total")}


def ranked(scores: torch.Tensor, ranks: torch.Tensor) -> torch.Tensor:
    return plackett_luce(scores, ranks, fx.ONE_LIST, 1)


def first_error_labels() -> list[int]:
    labels = torch.tensor([1, 0, 1, 0])
    return torch.where(until_first_error(labels, torch.zeros(4, dtype=torch.long), 1), labels, -100).tolist()


def mathshepherd() -> dict:
    counts = torch.tensor([3, 2, 0])
    labels = {name: rollout_labels(counts, 4, soft=name == "soft") for name in ("hard", "soft")}
    return {"correct_counts": counts, "K": 4, **labels}


NORMALISED = normalise_members(f64([[1.5], [5.0], [0.5]]), fx.MEMBER_REFERENCE)[:, 0]
RAW = f64([1.5, 5.0, 0.5])
MAJORITY, WEIGHTED = vote_totals(fx.ANSWERS), vote_totals(fx.ANSWERS, fx.ANSWER_SCORES)
NAIVE = fx.ANSWERS[pick_best(fx.ANSWER_SCORES)]
PROBABILITIES = fx.STEP_LOGITS.sigmoid().tolist()
KTO_LOSS = kto(fx.KTO_LOG_RATIOS, fx.KTO_DESIRABLE, BASELINE)
ODDS = free.log_odds(PAIRS)
ACTUAL = {
    "gap": PAIRS.gap,
    "dpo.sigmoid.per_pair": losses.dpo(PAIRS),
    "dpo.sigmoid.mean": losses.dpo(PAIRS).mean(),
    "dpo.dL_dpi_c(per pair, before /B)": dpo_slope(),
    "dpo.policy_equals_ref": start(),
    "dpo.accuracy(strict >)": pair_metrics(PAIRS, beta=0.1)["accuracy"].mean(),
    "cdpo.eps0.1.mean": losses.cdpo(PAIRS).mean(),
    "robust.eps0.1.mean": losses.robust(PAIRS).mean(),
    "hinge.mean": losses.hinge(PAIRS).mean(),
    "ipo.sum.tau0.1.mean": losses.ipo_sum(PAIRS).mean(),
    "gap_len_avg": PAIRS.average_gap,
    "ipo.length_avg.tau0.1.mean": losses.ipo_average(PAIRS).mean(),
    "dpo.sigmoid_norm.beta2.mean": losses.dpo_normalised(PAIRS).mean(),
    "dpo_nll.alpha0.2.seq_sum": nll("sequence_sum"),
    "dpo_nll.alpha0.2.per_seq_token_mean(IterativeRPO)": nll("sequence_mean"),
    "dpo_nll.alpha0.2.batch_token_mean(TRL sft)": nll("batch_token_mean"),
    "dpop.lam5.per_pair": losses.dpo_positive(PAIRS),
    "nca_pair.mean": losses.nca(PAIRS).mean(),
    "bco_pair.mean(no shift)": losses.bco_pair(PAIRS).mean(),
    "sppo_hard.mean": losses.sppo(PAIRS).mean(),
    "apo_zero.mean": losses.apo_zero(PAIRS).mean(),
    "apo_down.mean": losses.apo_down(PAIRS).mean(),
    "exo_pair.eps0.001.mean": losses.exo(PAIRS).mean(),
    "ld_dpo.logp_c,logp_r": desensitised(),
    "simpo.beta2.ratio0.5.per_pair": free.simpo(PAIRS),
    "simpo.mean": free.simpo(PAIRS).mean(),
    "cpo.beta0.1.alpha1.mean(batch token mean NLL)": (
        free.cpo(PAIRS) + losses.chosen_nll(PAIRS, "batch_token_mean", batch_pairs=4, batch_tokens=35)
    ).mean(),
    "orpo.log_odds": ODDS,
    "orpo.or_term.mean": free.odds_ratio(PAIRS).mean(),
    "orpo.lambda0.1.loss(per-seq avg NLL, mean)": free.orpo(PAIRS).mean(),
    "kto.z0(mean logratio of mismatched pairs, clamped at 0)": BASELINE,
    "kto.beta0.1.per_example": KTO_LOSS,
    "kto.mean.w1/1": KTO_LOSS.mean(),
    "kto.mean.wD1.33/wU1": kto(fx.KTO_LOG_RATIOS, fx.KTO_DESIRABLE, BASELINE, desirable_weight=1.33).mean(),
    "kto.z0_if_raw_mean_negative_clamps_to": kto_baseline(f64([-0.4])),
    "beta_dpo.trace": trace(),
    "beta_dpo.clamped_low": dynamic_beta(-5.0, GapMoments(raw_mean=0.2, updates=1)),
    "sdpo.softmax_negatives": softmax_negatives(fx.REWARDS, WINNER, fx.ONE_LIST, 1)[0],
    "infonce(=-log softmax of winner over all)": -fx.REWARDS.log_softmax(0)[0],
    "multi_pair_mean(1 winner vs each loser)": all_pairs(fx.REWARDS, (~WINNER).long(), fx.ONE_LIST, 1)[0],
    "plackett_luce.order0132": ranked(fx.REWARDS, fx.ORDER_RANKS)[0],
    "plackett_luce.order_best_only_equals_softmax": ranked(fx.REWARDS, (~WINNER).long())[0],
    "pl_all_equal_K4": ranked(f64([0.3] * 4), torch.arange(4))[0],
    "softmax_all_equal_K4": softmax_negatives(f64([0.3] * 4), WINNER, fx.ONE_LIST, 1)[0],
    "pl.grad_wrt_rewards(in order)": gradient(lambda r: ranked(r, fx.ORDER_RANKS), fx.REWARDS)[[0, 1, 3, 2]],
    "softmax.grad_wrt_rewards[0..3]": gradient(lambda r: softmax_negatives(r, WINNER, fx.ONE_LIST, 1), fx.REWARDS),
    "mdpo.example": image_terms(),
    "bt.mean": bradley_terry(fx.CHOSEN_SCORES, fx.REJECTED_SCORES).mean(),
    "bt.margin.mean": bradley_terry(fx.CHOSEN_SCORES, fx.REJECTED_SCORES, margin=fx.MARGINS).mean(),
    "bt.centred0.01.mean": bradley_terry(fx.CHOSEN_SCORES, fx.REJECTED_SCORES, centring=0.01).mean(),
    "bt.k_way.full_pairs(K=3, weights 1/3)": all_pairs(
        f64([1.2, 0.6, 0.2]), torch.arange(3), torch.zeros(3, dtype=torch.long), 1
    )[0],
    "ens.mean": combine(fx.MEMBERS, "mean"),
    "ens.min": combine(fx.MEMBERS, "worst"),
    "ens.uwo.lam0.5(var ddof0)": combine(fx.MEMBERS, "uncertainty_weighted"),
    "ens.uwo.lam0.5(var ddof1)": combine(fx.MEMBERS, "uncertainty_weighted", ddof=1),
    "ens.mean_minus_std.lam1": combine(fx.MEMBERS, "mean_minus_deviation", coefficient=1.0),
    "ens.normalised_members": NORMALISED,
    "ens.norm.mean/min": [NORMALISED.mean(), NORMALISED.min()],
    "ens.raw.argmin_vs_norm.argmin(scale trap)": [RAW.argmin(), NORMALISED.argmin()],
    "prm.bce.hard": step_losses(fx.STEP_LOGITS, f64([1, 0, 1])).mean(),
    "prm.bce.soft": step_losses(fx.STEP_LOGITS, fx.SOFT_LABELS).mean(),
    "prm.bce.soft_minimum(entropy of labels)": step_losses(torch.logit(fx.SOFT_LABELS), fx.SOFT_LABELS).mean(),
    "prm.p": PROBABILITIES,
    "prm.agg": {
        "min": AGGREGATIONS["min"](PROBABILITIES),
        "prod": AGGREGATIONS["product"](PROBABILITIES),
        "last": AGGREGATIONS["last"](PROBABILITIES),
        "mean": AGGREGATIONS["mean"](PROBABILITIES),
        "sum_logit_odds": AGGREGATIONS["log_odds"](PROBABILITIES),
    },
    "prm.first_error_label_mask(-100 after first 0)": first_error_labels(),
    "prm.two_class.ce": two_class_step_losses(f64([[0.1, 1.0], [0.7, -0.3]]), torch.tensor([1, 0])).mean(),
    "mathshepherd.labels": mathshepherd(),
    "vote.majority": MAJORITY,
    "vote.weighted": WEIGHTED,
    "vote.best_of_n(naive)": NAIVE,
    "vote.winner": {"majority": vote_winner(MAJORITY), "weighted": vote_winner(WEIGHTED), "naive": NAIVE},
    "bon.unbiased.n=1..6": [best_of_n(fx.ANSWER_SCORES, VALUES, n) for n in range(1, 7)],
    "bon.kl_bound.n4 (log n-(n-1)/n)": best_of_n_kl_bound(4),
    "pass_at_k": {
        f"n{n}c{c}k{k}": pass_at_k(n, c, k)
        for n, c, k in [(10, 3, 1), (10, 3, 5), (10, 0, 5), (10, 10, 1), (4, 2, 3), (200, 7, 100), (5, 1, 5)]
    },
    "pass_hat_k (all k correct) n10c3k2": pass_hat_k(10, 3, 2),
    "pass_at_1.over_problems [(4,2),(8,2)]": float(np.mean([pass_at_k(4, 2, 1), pass_at_k(8, 2, 1)])),
}
NOT_COMPUTED = {
    "F3": "input",
    "cdpo.minimiser_h(=logit(1-eps))": "a property: tested below",
    "pass_at_k.biased_plugin 1-(1-c/n)^k n10c3k5": "a known wrong value: negative test below",
    "pass_at_1.pooled_wrong": "a known wrong value: negative test below",
}


def test_every_key_is_computed_or_explained():
    assert FACTS.keys() == ACTUAL.keys() | NOT_COMPUTED.keys()


@pytest.mark.parametrize("key", ACTUAL)
def test_value(key):
    assert close(FACTS[key], plain(ACTUAL[key])), (key, FACTS[key], plain(ACTUAL[key]))


@pytest.mark.parametrize(
    ("key", "loss"),
    [
        ("dpo.sigmoid.mean", losses.dpo),
        ("ipo.sum.tau0.1.mean", losses.ipo_sum),
        ("exo_pair.eps0.001.mean", losses.exo),
        ("apo_zero.mean", losses.apo_zero),
        ("simpo.mean", free.simpo),
        ("orpo.lambda0.1.loss(per-seq avg NLL, mean)", free.orpo),
    ],
)
def test_value_from_float32_inputs(key, loss):
    narrow = {name: getattr(PAIRS, name).float() for name in ("chosen", "rejected", "ref_chosen", "ref_rejected")}
    assert pytest.approx(FACTS[key], rel=1e-5) == float(loss(pairs(**narrow)).mean())


def test_cdpo_has_its_minimum_where_the_facts_say():
    margin = FACTS["cdpo.minimiser_h(=logit(1-eps))"]
    zero = torch.zeros(1, dtype=torch.float64)
    slope = gradient(
        lambda chosen: losses.cdpo(pairs(chosen=chosen, rejected=zero, ref_chosen=zero, ref_rejected=zero)),
        zero + margin / 0.1,
    )
    assert [0.0] == pytest.approx(slope.tolist(), abs=1e-12)


def test_trap_the_two_readings_of_ipo_are_not_the_same_loss():
    assert not close(plain(losses.ipo_sum(PAIRS).mean()), FACTS["ipo.length_avg.tau0.1.mean"])


def test_trap_the_three_nll_normalisers_are_not_the_same_loss():
    assert len({round(nll(name), 9) for name in ("sequence_sum", "sequence_mean", "batch_token_mean")}) == 3


def test_trap_beta_dpo_does_not_start_from_zero():
    first = GapMoments().observe(fx.GAPS[0])
    fact = FACTS["beta_dpo.trace"][0]
    assert not close(fact["weights_repo"], plain(log_typicality(fx.GAPS[0], first).exp()))
    assert not close(fact["beta_repo(all kept)"], dynamic_beta(2.0, first))


def test_trap_pass_at_k_is_not_the_plug_in():
    assert pass_at_k(10, 3, 5) - FACTS["pass_at_k.biased_plugin 1-(1-c/n)^k n10c3k5"] > 0.08


def test_trap_pass_at_k_is_not_pooled_over_problems():
    assert not close(FACTS["pass_at_1.pooled_wrong"], ACTUAL["pass_at_1.over_problems [(4,2),(8,2)]"])


def test_trap_the_scale_of_a_member_chooses_the_raw_minimum():
    raw, normalised = FACTS["ens.raw.argmin_vs_norm.argmin(scale trap)"]
    assert raw != normalised


def test_weights_of_the_repository_underflow_in_float32():
    weights = torch.tensor(FACTS["beta_dpo.trace"][0]["weights_repo"], dtype=torch.float32)
    assert [1, 3] == (weights == 0).nonzero().flatten().tolist()
    assert math.isfinite(float(log_typicality(fx.GAPS[0], GapMoments().observe(fx.GAPS[0])).sum()))
