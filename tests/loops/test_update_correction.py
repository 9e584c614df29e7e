"""Corrections inside the update: what is recomputed, what stands in, and what reaches the loss."""

import dataclasses

import numpy as np
import pytest

from posttrain.batches.pack import pack
from posttrain.config import Batches
from posttrain.correction import Correction
from posttrain.loops.update import update
from tests.loops.learning import CountingLearner, PlainAlgorithm, rows

TIS = Correction(type="decoupled", weight="truncate")
BYPASS = Correction(type="bypass")


def sampled(still=()):
    """Rows whose engine log-probability is -0.5 at every token; the counting learner's own is 0 at first."""
    given = rows(2, 2, still=still)
    return [dataclasses.replace(s, rollout_logprobs=np.full(len(s), -0.5)) for s in given]


def run(correction, samples=None, **batches):
    learner = CountingLearner()
    done = update(
        sampled() if samples is None else samples,
        learner=learner,
        algorithm=PlainAlgorithm(),
        pack=lambda given: pack(given, token_budget=1000, layout="padded"),
        batches=Batches(**batches),
        constant=8.0,
        seed=(0, 0),
        correction=correction,
    )
    return done, learner


def weights(learner):
    return [batch.token_weight["policy"].tolist() for _, _, batch in learner.batches]


def test_without_a_correction_nothing_is_recomputed():
    done, learner = run(Correction())
    assert ([], [[1 / 8] * 8]) == (learner.asked, weights(learner))
    assert "mismatch/mean" not in done.stats


def test_a_decoupled_weight_needs_one_more_forward_and_reaches_the_loss_once():
    _, learner = run(TIS)
    assert [False] == [reference for reference, _ in learner.asked]
    assert [[np.exp(0.5) / 8] * 8] == [pytest.approx(row) for row in weights(learner)]


def test_the_weight_is_that_of_the_first_pass():
    _, learner = run(TIS, epochs=3)
    assert [[np.exp(0.5) / 8] * 8] * 3 == [pytest.approx(row) for row in weights(learner)]


def test_still_rows_are_measured_too():
    done, learner = run(TIS, sampled(still={(0, 0), (0, 1)}))
    assert 4 == len(learner.asked[0][1])
    assert np.exp(0.5) == pytest.approx(done.stats["mismatch/mean"].result)


def test_bypass_recomputes_nothing_even_for_several_steps():
    _, learner = run(BYPASS, epochs=2)
    assert [] == learner.asked
    assert [[-0.5] * 8] * 2 == [batch.old_logprobs.tolist() for _, _, batch in learner.batches]


def test_bypass_with_rejection_measures_and_stands_in():
    _, learner = run(Correction(type="bypass", geometric=(0.5, 1.5)))
    assert 1 == len(learner.asked)
    assert [[-0.5] * 8] == [batch.old_logprobs.tolist() for _, _, batch in learner.batches]
    assert [[0.0] * 8] == weights(learner)


def test_the_samples_come_back_as_they_trained():
    done, _ = run(TIS)
    assert [True] * 4 == [s.mismatch is not None and s.old_logprobs is not None for s in done.samples]
