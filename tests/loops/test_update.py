"""One batch to optimizer steps: anchors only where needed, groups whole, nothing done for what cannot move."""

import math

import numpy as np
import pytest
import torch

from posttrain.batches.pack import pack
from posttrain.config import Batches
from posttrain.loops.update import own_logprobs, update
from posttrain.types import Needs
from tests.learners.learning import build, build_model, same, weights
from tests.loops.learning import CountingLearner, PlainAlgorithm, RefiningAlgorithm, rows, run_update


def test_one_step_needs_no_old_log_probabilities():
    _, learner = run_update(rows())
    assert ([], True) == (learner.asked, all(batch.old_logprobs is None for _, _, batch in learner.batches))


@pytest.mark.parametrize("batches", [{"epochs": 2}, {"minibatches": 2}])
def test_a_second_step_needs_them_once(batches):
    _, learner = run_update(rows(), **batches)
    assert [False] == [reference for reference, _ in learner.asked]


def test_an_algorithm_may_ask_for_them():
    _, learner = run_update(rows(), algorithm=PlainAlgorithm(old_logprobs=True))
    assert [False] == [reference for reference, _ in learner.asked]


def test_old_log_probabilities_stay_those_of_the_start():
    _, learner = run_update(rows(), epochs=3)
    assert [0.0] * 3 == [float(batch.old_logprobs.abs().max()) for _, _, batch in learner.batches]


def test_the_reference_is_asked_only_if_needed():
    _, learner = run_update(
        rows(), algorithm=PlainAlgorithm(ref_logprobs=True, streams={"policy": "token-mean", "kl": "token-mean"})
    )
    assert ([True], -5.0) == (
        [reference for reference, _ in learner.asked],
        float(learner.batches[0][2].ref_logprobs[0]),
    )


def test_still_samples_are_not_even_anchored():
    _, learner = run_update(rows(1, 4, still={(0, 1), (0, 2)}), epochs=2)
    assert [[(0, 0), (0, 3)]] == [asked for _, asked in learner.asked]


def test_still_samples_are_anchored_where_an_algorithm_refines():
    _, learner = run_update(rows(1, 2, still={(0, 1)}), algorithm=RefiningAlgorithm(), epochs=2)
    assert [False] * 2 == [batch.old_logprobs is None for _, _, batch in learner.batches]


def test_still_samples_are_counted_and_not_forwarded():
    done, learner = run_update(rows(2, 2, still={(0, 1)}))
    assert (1, [(0, 0, 0), (0, 1, 0), (0, 1, 1)]) == (done.still, sorted(learner.seen()))


def test_still_samples_count_in_the_weights():
    _, learner = run_update(rows(2, 2, still={(0, 1)}))
    assert 1 / 8 == float(learner.batches[0][2].token_weight["policy"][0])


def test_the_record_has_the_log_probabilities_of_the_only_step():
    result, _ = run_update(rows())
    found = [sample.old_logprobs[sample.loss_mask] for sample in result.samples if sample.old_logprobs is not None]
    assert [0.0] == sorted(set(np.abs(np.concatenate(found))))


def test_still_samples_have_none_in_the_record():
    result, learner = run_update(rows())
    forwarded = {(s.group, s.rollout) for _, samples, _ in learner.batches for s in samples}
    assert forwarded == {(s.group, s.rollout) for s in result.samples if s.old_logprobs is not None}


def test_a_batch_where_nothing_moves_makes_no_step():
    done, learner = run_update(rows(1, 2, still={(0, 0), (0, 1)}), epochs=2)
    assert ((), 0, [], 4) == (done.steps, learner.steps, learner.batches, done.still)


def test_a_batch_without_samples_makes_no_step():
    done, learner = run_update([], epochs=2, minibatches=2)
    assert ((), 0, 0, {}) == (done.steps, learner.steps, done.computed, done.stats)


@pytest.mark.parametrize(("epochs", "minibatches"), [(1, 1), (3, 1), (1, 2), (2, 4)])
def test_the_number_of_steps(epochs, minibatches):
    done, _ = run_update(rows(), epochs=epochs, minibatches=minibatches)
    assert epochs * minibatches == len(done.steps)


def test_groups_stay_whole_in_a_step():
    _, learner = run_update(rows(6, 3), minibatches=4, budget=5)
    steps_of = {}
    for step, group, _ in learner.seen():
        steps_of.setdefault(group, set()).add(step)
    assert [1] * 6 == [len(steps) for steps in steps_of.values()]


def test_every_epoch_sees_every_sample():
    _, learner = run_update(rows(4, 2), epochs=2, minibatches=2)
    assert [2] * 8 == list(np.unique([(g, r) for _, g, r in learner.seen()], axis=0, return_counts=True)[1])


def test_epochs_deal_anew():
    _, learner = run_update(rows(8, 1), epochs=2, minibatches=2)
    first, second = ({g for step, g, _ in learner.seen() if step == s} for s in (0, 2))
    assert first != second


def test_weights_are_over_one_optimizer_step():
    _, learner = run_update(rows(4, 2), minibatches=2, budget=5)
    sums = [sum(float(b.token_weight["policy"].sum()) for s, _, b in learner.batches if s == step) for step in (0, 1)]
    assert [pytest.approx(1.0)] * 2 == sums


@pytest.mark.parametrize("budget", [4, 8, 1000])
def test_the_loss_adds_up_over_microbatches(budget):
    learner = CountingLearner()
    learner.steps = 1
    done, _ = run_update(rows(), learner, budget=budget)
    assert pytest.approx(-1.0) == done.stats["loss"].result


def test_the_loss_is_a_mean_over_optimizer_steps():
    done, _ = run_update(rows(), epochs=3)
    assert pytest.approx((0 - 1 - 2) / 3) == done.stats["loss"].result


def test_trained_tokens_are_a_sum():
    done, _ = run_update(rows(), epochs=3)
    assert 3 * 8 * 2 == done.stats["tokens/trained"].result


def test_computed_places_are_counted():
    done, learner = run_update(rows(), budget=4)
    assert sum(2 * len(samples) for _, samples, _ in learner.batches) == done.computed


def test_between_is_called_after_each_microbatch():
    calls = []
    update(
        rows(),
        learner=CountingLearner(),
        algorithm=PlainAlgorithm(),
        pack=lambda found: pack(found, token_budget=2, layout="padded"),
        batches=Batches(),
        constant=1.0,
        seed=(0,),
        between=lambda: calls.append(1),
    )
    assert 8 == len(calls)


def test_own_log_probabilities_follow_the_order_given():
    samples = rows(2, 2)

    class ByGroup(CountingLearner):
        def logprobs(self, microbatch, *, reference=False):
            values = np.concatenate([np.full(2, 10.0 * s.group + s.rollout) for s in microbatch.samples])
            return values, values

    found = own_logprobs(samples, ByGroup(), lambda given: pack(given[::-1], token_budget=5, layout="padded"))
    assert [0.0, 1.0, 10.0, 11.0] == [row[1] for row in found]


def test_own_log_probabilities_are_unknown_where_nothing_trains():
    (row,) = own_logprobs(rows(1, 1), CountingLearner(), lambda given: pack(given, token_budget=9, layout="padded"))
    assert [True, False, False] == np.isnan(row).tolist()


def real_update(model, samples, *, budget, layout="padded"):
    learner = build(model, needs=Needs())
    update(
        samples,
        learner=learner,
        algorithm=PlainAlgorithm(),
        pack=lambda given: pack(given, token_budget=budget, layout=layout),
        batches=Batches(),
        constant=1.0,
        seed=(0, 0),
    )
    return weights(learner)


def test_a_real_model_stays_as_it_was_where_nothing_moves():
    model = build_model(dtype=torch.float64)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    assert same(before, real_update(model, rows(1, 2, still={(0, 0), (0, 1)}), budget=100))


def test_leaving_still_samples_out_changes_no_weight():
    samples = rows(2, 2, still={(0, 1)})
    tiny = [s if (s.group, s.rollout) != (0, 1) else _nearly_still(s) for s in samples]
    skipped = real_update(build_model(dtype=torch.float64), samples, budget=100)
    forwarded = real_update(build_model(dtype=torch.float64), tiny, budget=100)
    worst = max(float((skipped[n] - forwarded[n]).abs().max()) for n in skipped)
    assert worst < 1e-9


def _nearly_still(one):
    """An advantage too small to matter but not zero, so that the sample is forwarded."""
    return rows(1, 2, still=set())[1].__class__(
        **{name: getattr(one, name) for name in one.__slots__} | {"advantages": np.full(3, math.ulp(0.0))}
    )
