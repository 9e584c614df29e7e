"""Golden corrections for rollout/training mismatch and staleness: golden_offpolicy.json, every key."""

import pytest
import torch

from posttrain.functional import mismatch, mismatch_report, rejection, staleness
from posttrain.functional.reduce import token_weights
from posttrain.functional.surrogates import clipped
from tests.golden.fixtures import COUNT, COUNTS, SAMPLES, A, f64, golden, new, old, plain, roll, same, spread, uncovered

GOLDEN = golden("offpolicy")
LOG_W = old - roll
SEQUENCE = mismatch.sequence_log_weights(LOG_W, SAMPLES, COUNT)
GEOMETRIC = mismatch.geometric_log_weights(LOG_W, SAMPLES, COUNT)
REPORT = mismatch_report.report(old, roll, SAMPLES, COUNT)
MEAN = token_weights("token-mean", COUNTS)[SAMPLES]
KEEP = mismatch.inside(LOG_W, low=0.5, high=2)


def banded(log_weights: torch.Tensor, **bounds) -> torch.Tensor:
    return mismatch.banded(log_weights, **bounds)


def loss(pair: tuple[torch.Tensor, torch.Tensor], weights: torch.Tensor = MEAN) -> torch.Tensor:
    ratio, correction = pair
    return (weights * correction * clipped(ratio, A, clip_low=0.2, clip_high=0.2)).sum()


def decoupled(weigh) -> tuple[torch.Tensor, torch.Tensor]:
    return mismatch.decoupled(new, old, roll, weigh)


def icepop(log_weights: torch.Tensor) -> torch.Tensor:
    return banded(log_weights, low=0.5, high=2)


def kept_only() -> torch.Tensor:
    weights = rejection.keep_weights("token-mean", SAMPLES, COUNT, KEEP, denominator="kept")
    return loss(decoupled(torch.exp), weights)


def rows(values: torch.Tensor) -> list[torch.Tensor]:
    return list(values.split(COUNTS.tolist()))


def slots(concurrent: int, running: int, accepted: int, bound: int, version: int, batch: int) -> int:
    return staleness.free_slots(
        concurrent=concurrent, running=running, accepted=accepted, bound=bound, version=version, batch=batch
    )


CASES = {
    "log_w*mask": lambda: spread(LOG_W),
    "w_token*mask": lambda: spread(LOG_W.exp()),
    "tis.token.cap2*mask": lambda: spread(mismatch.truncated(LOG_W, cap=2)),
    "icepop.[0.5,2]*mask": lambda: spread(icepop(LOG_W)),
    "icepop.[0.5,5]*mask": lambda: spread(banded(LOG_W, low=0.5, high=5)),
    "clamp.[0.5,2](slime/OpenRLHF 'tis' with low)*mask": lambda: spread(mismatch.clamped(LOG_W, low=0.5, high=2)),
    "seq.log_w_sum": lambda: SEQUENCE,
    "seq.w_product": lambda: SEQUENCE.exp(),
    "seq.w_geo": lambda: GEOMETRIC.exp(),
    "seq_tis.cap2": lambda: mismatch.truncated(SEQUENCE, cap=2),
    "seq_mis.keep_if<=2": lambda: banded(SEQUENCE, high=2),
    "seq_mis.TRL_cap3": lambda: banded(SEQUENCE, high=3),
    "geo_rs.[0.999,1.001].keep": lambda: mismatch.inside(GEOMETRIC, low=0.999, high=1.001),
    "geo_rs.[0.5,2].keep": lambda: mismatch.inside(GEOMETRIC, low=0.5, high=2),
    "k2_tokens*mask": lambda: spread(rejection.divergence(LOG_W, "k2")),
    "k3_tokens*mask": lambda: spread(rejection.divergence(LOG_W, "k3")),
    "seq_mean_k3": lambda: rejection.row_statistic(rejection.divergence(LOG_W, "k3"), SAMPLES, COUNT, "mean"),
    "seq_max_k2": lambda: rejection.row_statistic(rejection.divergence(LOG_W, "k2"), SAMPLES, COUNT, "max"),
    "mean_w_token": lambda: REPORT.mean_weight,
    "ess_fraction(capped2)": lambda: mismatch_report.effective_share(mismatch.truncated(LOG_W, cap=2)),
    "ess_fraction(raw)": lambda: REPORT.effective_share,
    "kl_roll_to_old.k1": lambda: REPORT.k1,
    "kl_roll_to_old.k3": lambda: REPORT.k3,
    "chi2_token": lambda: REPORT.chi_square,
    "chi2_seq": lambda: REPORT.chi_square_sequence,
    "tis.token.cap2.batch_norm_factor": lambda: mismatch.truncated(LOG_W, cap=2).mean(),
    "decoupled.token_tis2.token-mean": lambda: loss(decoupled(mismatch.truncated)),
    "decoupled.icepop[0.5,2].token-mean(denominator=all 13)": lambda: loss(decoupled(icepop)),
    "decoupled.mask_rejection.token-mean(denominator=kept only)": kept_only,
    "kept_tokens": lambda: KEEP.sum(),
    "bypass.ppo_clip.token-mean": lambda: loss(mismatch.bypass(new, roll)),
    "bypass.reinforce_is.token-mean": lambda: (MEAN * mismatch.weighted_reinforce(new, roll, A)).sum(),
    "verl_k1_trap.bounds0.1_1.2.keep_by_w": lambda: rows(mismatch.inside(LOG_W, low=0.1, high=1.2)),
    "opsm.mean_log(roll/new)": lambda: rejection.row_statistic(roll - new, SAMPLES, COUNT, "mean"),
    "opsm.keep.delta0.1": lambda: rejection.opsm_keep(A, roll, new, SAMPLES, COUNT, bound=0.1),
    "areal.prox.loglinear.example(behave -1.2, theta -0.8)": lambda: staleness.proximal(
        f64(-1.2), f64(-0.8), rollout_version=3, proximal_version=6, version=7
    ),
    "areal.capacity.maxc64.run10.acc250.eta2.v1.bs64": lambda: slots(64, 10, 250, 2, 1, 64),
    "areal.capacity.eta0.v4.bs64.acc300.run20": lambda: slots(512, 20, 300, 0, 4, 64),
}
TRAPS = {
    "verl_k1_trap.bounds0.1_1.2.keep_verl(1/w)": CASES["verl_k1_trap.bounds0.1_1.2.keep_by_w"],
    "trl.dapo.scale_of_each_step(vs correct 1.0) with steps_per_generation=4, GA=1": lambda: [
        (token_weights("token-mean", torch.tensor([tokens])) * tokens)[0] for tokens in (100, 300, 200, 400)
    ],
}
NOT_APPLICABLE = {
    "areal.prox.loglinear.alpha": "an intermediate of the proximal example",
    "verl.fully_async.rollout_num.stal0.5.sync4.req1.mini64.stale30": "verl's admission rule; ours is free_slots",
}


@pytest.mark.parametrize("key", CASES)
def test_value_is_the_golden_one(key):
    assert same(GOLDEN[key], plain(CASES[key]()))


@pytest.mark.parametrize("key", TRAPS)
def test_known_fault_is_not_ours(key):
    assert not same(GOLDEN[key], plain(TRAPS[key]()))


def test_each_optimizer_step_has_scale_one():
    assert [1.0] * 4 == plain(list(TRAPS.values())[1]())


def test_every_key_is_covered():
    assert set() == uncovered("offpolicy", CASES, TRAPS, NOT_APPLICABLE)
