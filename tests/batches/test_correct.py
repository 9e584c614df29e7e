"""Corrections on F1 against the golden values, through samples, weights and loss, once each."""

import dataclasses

import numpy as np
import pytest
import torch

from posttrain.batches.build import weigh
from posttrain.batches.correct import correct
from posttrain.batches.pack import pack
from posttrain.correction import Correction
from posttrain.models.rows import token_batch
from tests.algorithms.family import anchored, f1_group, make, samples_of
from tests.golden.fixtures import COUNTS, SAMPLES, golden, new, old, roll, spread

GOLDEN = golden("offpolicy")
DR = {"reduction": "token-mean"}


def samples(**options):
    return samples_of(make("dr_grpo"), f1_group(), **options)


def corrected(given=None, /, **section):
    return correct(samples() if given is None else given, Correction(**section))


def mismatch(rows):
    return [float(w) for s in rows for w in s.mismatch[s.loss_mask]]


def masks(rows):
    return [bool(k) for s, full in zip(rows, samples(), strict=True) for k in s.loss_mask[full.loss_mask]]


def golden_loss(rows, **options):
    """Token-mean PPO clip of corrected samples, through weights and batch."""
    algorithm = make("dr_grpo", **(DR | options))
    microbatch = pack(weigh(rows, algorithm.needs.streams), token_budget=1000, layout="packed")[0]
    batch = token_batch(microbatch, dtype=torch.float64, device="cpu")
    current = torch.tensor([x for x, kept in zip(new.tolist(), masks(rows), strict=True) if kept], dtype=torch.float64)
    return float(algorithm.loss(batch, current, None, None).total)


def at_tokens(table):
    return torch.tensor(table, dtype=torch.float64)[spread(torch.ones(13)) > 0].tolist()


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ({"weight": "truncate"}, "tis.token.cap2*mask"),
        ({"weight": "mask", "floor": 0.5}, "icepop.[0.5,2]*mask"),
        ({"weight": "mask", "floor": 0.5, "cap": 5.0}, "icepop.[0.5,5]*mask"),
    ],
)
def test_token_weights_are_the_golden_ones(section, key):
    rows, _ = corrected(type="decoupled", **section)
    assert at_tokens(GOLDEN[key]) == pytest.approx(mismatch(rows), abs=1e-9)


def by_row(values):
    return torch.tensor(values, dtype=torch.float64)[SAMPLES].tolist()


def test_a_sequence_weight_is_the_product_over_the_rollout():
    rows, _ = corrected(type="decoupled", weight="truncate", level="sequence")
    assert by_row(GOLDEN["seq_tis.cap2"]) == pytest.approx(mismatch(rows), abs=1e-9)


def test_a_sequence_mask_drops_whole_rollouts():
    rows, _ = corrected(type="decoupled", weight="mask", level="sequence")
    assert by_row([0.0, GOLDEN["seq.w_product"][1], GOLDEN["seq.w_product"][2], 0.0]) == pytest.approx(mismatch(rows))


@pytest.mark.parametrize("bounds", [(0.999, 1.001), (0.5, 2.0)])
def test_geometric_rejection_is_the_golden_one(bounds):
    rows, _ = corrected(type="decoupled", geometric=bounds)
    expected = GOLDEN[f"geo_rs.[{bounds[0]:g},{bounds[1]:g}].keep"]
    assert by_row([float(k) for k in expected]) == mismatch(rows)


def test_opsm_drops_bad_answers_that_drifted():
    drifted = samples(old=new)
    rows, _ = corrected(drifted, type="decoupled", opsm=0.1)
    assert by_row([float(k) for k in GOLDEN["opsm.keep.delta0.1"]]) == mismatch(rows)


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ({"type": "decoupled", "weight": "truncate"}, "decoupled.token_tis2.token-mean"),
        (
            {"type": "decoupled", "weight": "mask", "floor": 0.5},
            "decoupled.icepop[0.5,2].token-mean(denominator=all 13)",
        ),
        (
            {"type": "decoupled", "weight": "mask", "floor": 0.5, "denominator": "kept"},
            "decoupled.mask_rejection.token-mean(denominator=kept only)",
        ),
        ({"type": "bypass"}, "bypass.ppo_clip.token-mean"),
    ],
)
def test_the_loss_is_the_golden_one(section, key):
    rows, _ = corrected(**section)
    assert GOLDEN[key] == pytest.approx(golden_loss(rows), abs=1e-9)


def test_bypass_has_no_weight():
    rows, numbers = corrected(type="bypass")
    assert ([None] * 4, {}) == ([s.mismatch for s in rows], numbers)
    assert roll.tolist() == [float(x) for s in rows for x in s.old_logprobs[s.loss_mask]]


def test_bypass_with_rejection_weighs_only_by_keeping():
    rows, _ = corrected(type="bypass", geometric=(0.5, 1.4))
    assert {0.0, 1.0} == set(mismatch(rows))
    assert roll.tolist() == [float(x) for s in rows for x in s.old_logprobs[s.loss_mask]]


def test_a_second_correction_is_refused():
    rows, _ = corrected(type="decoupled", weight="truncate")
    with pytest.raises(ValueError, match="twice"):
        corrected(rows, type="decoupled", weight="truncate")


def test_unknown_rollout_probabilities_are_refused():
    blind = [dataclasses.replace(s, rollout_logprobs=np.full(len(s), np.nan)) for s in samples()]
    for section in ({"type": "bypass"}, {"type": "decoupled", "weight": "truncate"}):
        with pytest.raises(ValueError, match="13 of 13 trained tokens"):
            corrected(blind, **section)


def test_no_correction_changes_nothing():
    given = samples()
    rows, numbers = corrected(given)
    assert ([True] * 4, {}) == ([a is b for a, b in zip(given, rows, strict=True)], numbers)


def test_equal_policies_weigh_exactly_one():
    given = anchored(samples(), old=roll)
    rows, numbers = corrected(given, type="decoupled", weight="mask", floor=0.5)
    assert [1.0] * 13 == mismatch(rows)
    assert (1.0, 0.0, 1.0) == (numbers["mismatch/mean"], numbers["mismatch/k3"], numbers["mismatch/effective_share"])


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("mismatch/mean", "mean_w_token"),
        ("mismatch/k1", "kl_roll_to_old.k1"),
        ("mismatch/k3", "kl_roll_to_old.k3"),
        ("mismatch/chi_square", "chi2_token"),
        ("mismatch/chi_square_sequence", "chi2_seq"),
        ("mismatch/effective_share", "ess_fraction(raw)"),
    ],
)
def test_the_numbers_are_the_golden_ones(name, key):
    _, numbers = corrected(type="decoupled", weight="truncate")
    assert GOLDEN[key] == pytest.approx(numbers[name], abs=1e-9)


def test_what_is_dropped_is_counted():
    _, numbers = corrected(type="decoupled", weight="mask", floor=0.5)
    assert 1 - GOLDEN["kept_tokens"] / 13 == pytest.approx(numbers["mismatch/dropped_share"])


def test_kept_denominators_leave_dropped_tokens_out_of_every_count():
    rows, _ = corrected(type="decoupled", weight="mask", floor=0.5, denominator="kept")
    weighed = weigh(rows, {"policy": "token-mean", "kl": "token-mean"})
    assert GOLDEN["kept_tokens"] == sum(int(s.loss_mask.sum()) for s in rows)
    assert 1.0 == pytest.approx(sum(float(s.token_weight["kl"].sum()) for s in weighed))


def test_the_weight_goes_into_the_policy_part_alone():
    rows, _ = corrected(type="decoupled", weight="truncate")
    weighed = weigh(rows, {"policy": "token-mean", "kl": "token-mean"})
    parts = {p: [float(w) for s in weighed for w in s.token_weight[p][s.loss_mask]] for p in ("policy", "kl")}
    assert [w / 13 for w in mismatch(rows)] == pytest.approx(parts["policy"])
    assert [1 / 13] * 13 == pytest.approx(parts["kl"])


def test_a_sequence_is_a_rollout_with_all_its_segments():
    halves = [dataclasses.replace(s, rollout=s.rollout // 2) for s in samples()]
    rows, _ = corrected(halves, type="decoupled", weight="truncate", level="sequence", cap=1e9)
    log_w = torch.zeros(2, dtype=torch.float64).index_add(0, SAMPLES // 2, old - roll)
    assert log_w.exp()[SAMPLES // 2].tolist() == pytest.approx(mismatch(rows))
    assert 13 == int(COUNTS.sum())
