"""Rejection fine-tuning: what is kept, and that nothing else counts."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from posttrain.algorithms.rft import RFT, Config
from posttrain.batches.build import build_samples, weigh
from tests.algorithms.examples import batch, empty, gradient, group, logprobs, value
from tests.golden.fixtures import new


def build(**options) -> RFT:
    return RFT(Config(**options))


def answers(*pairs, position=0):
    """A group of (text, reward)."""
    found = group([reward for _, reward in pairs], position)
    rollouts = [replace(r, text=text) for r, (text, _) in zip(found.rollouts, pairs, strict=True)]
    return replace(found, rollouts=tuple(rollouts))


def kept(rft, one):
    return [index for index, a in enumerate(rft.advantages([one])[0]) if float(a)]


def test_right_answers_are_kept():
    assert [1, 3] == kept(build(), answers(("a", 0.0), ("b", 1.0), ("c", 0.5), ("d", 1.0)))


def test_equal_answers_are_kept_once_white_space_aside():
    assert [0, 2] == kept(build(), answers(("1 + 1", 1.0), ("1+1", 1.0), ("2", 1.0)))


def test_equal_answers_can_be_kept():
    assert [0, 1] == kept(build(distinct=False), answers(("a", 1.0), ("a", 1.0)))


def test_a_task_yields_no_more_than_its_cap():
    assert [0, 1] == kept(build(cap=2), answers(("a", 1.0), ("b", 1.0), ("c", 1.0)))


def test_the_threshold_can_be_lower():
    assert [0, 2] == kept(build(threshold=0.5), answers(("a", 0.5), ("b", 0.4), ("c", 1.0)))


@pytest.mark.parametrize(("rewards", "answer"), [([0.0, 1.0], True), ([0.0, 0.9], False)])
def test_a_task_without_a_right_answer_is_left_out(rewards, answer):
    assert answer is build().keep(group(rewards))


def test_what_is_not_kept_counts_in_no_denominator():
    rft = build()
    groups = [answers(("a", 1.0), ("b", 0.0), ("a", 1.0)), answers(("c", 0.0), ("d", 1.0), position=1)]
    samples = rft.refine(build_samples(groups, rft.advantages(groups)))
    assert [True, False, False, False, True] == [bool(s.loss_mask.any()) for s in samples]
    weights = [float(s.token_weight["policy"].sum()) for s in weigh(samples, rft.needs.streams)]
    assert [0.5, 0.0, 0.0, 0.0, 0.5] == pytest.approx(weights)


def test_tasks_can_count_the_same_however_much_was_kept():
    rft = build(reduction="prompt-mean")
    groups = [answers(("a", 1.0), ("b", 1.0)), answers(("c", 1.0), ("d", 0.0), position=1)]
    samples = rft.refine(build_samples(groups, rft.advantages(groups)))
    weights = [float(s.token_weight["policy"].sum()) for s in weigh(samples, rft.needs.streams)]
    assert [0.25, 0.25, 0.5, 0.0] == pytest.approx(weights)


def test_the_loss_is_the_mean_negative_log_likelihood():
    rft, leaf = build(), logprobs()
    loss = rft.loss(batch(streams=rft.needs.streams), leaf, None, None)
    assert float(-new.mean()) == pytest.approx(value(loss), abs=1e-12)
    assert [-1 / 13] * 13 == pytest.approx(gradient(loss, leaf), abs=1e-12)


def test_the_number_of_imitated_answers_is_reported():
    rft = build()
    loss = rft.loss(batch(streams=rft.needs.streams), new, None, None)
    assert (4.0, value(loss)) == (loss.stats["samples/imitated"].result, loss.stats["loss"].result)


def test_an_empty_batch_is_zero_with_a_live_graph():
    rft, leaf = build(), torch.zeros(0, dtype=torch.float64, requires_grad=True)
    loss = rft.loss(empty(rft.needs.streams), leaf, None, None)
    assert (0.0, []) == (value(loss), gradient(loss, leaf))


def test_a_right_answer_without_tokens_trains_nothing():
    rft = build()
    one = answers(("", 1.0))
    (sample,) = build_samples([one], [[np.asarray(1.0)]])
    (refined,) = rft.refine([replace(sample, loss_mask=np.zeros_like(sample.loss_mask))])
    assert not refined.loss_mask.any()
