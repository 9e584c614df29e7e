"""The process reward model: labels on steps, their loss, and what has no verdict."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from posttrain.algorithms.prm import PRM, Config
from posttrain.batches.build import build_samples, weigh
from posttrain.types import Group, Task, TokenBatch
from tests.algorithms.examples import rollout
from tests.golden.fixtures import f64

NAN = float("nan")


def solution(labels, steps=(0, 0, 1, 1, 1, 2)):
    """One rollout whose sampled tokens belong to these steps."""
    one = rollout(0, None, tokens=len(steps))
    segment = replace(one.segments[0], turns=(-1, *steps))
    task = Task(id="t", messages=({"role": "user", "content": "?"},), columns={"labels": labels})
    return Group(position=0, task=task, rollouts=(replace(one, task=task, segments=(segment,)),))


def labelled(labels, **settings):
    """The labels on the sampled tokens."""
    ((found,),) = PRM(Config(**settings)).advantages([solution(labels)])
    return found


def batch(labels):
    count = len(labels)
    return TokenBatch(
        samples=torch.zeros(count, dtype=torch.int64),
        sample_count=1,
        advantages=f64(labels),
        token_weight={"value": torch.full((count,), 1 / count, dtype=torch.float64)},
    )


def loss(logits, labels):
    values = f64(logits).requires_grad_()
    return PRM(Config()).loss(batch(labels), torch.zeros(len(labels)), None, values), values


def test_a_label_stands_on_the_last_token_of_its_step():
    np.testing.assert_equal(labelled([1.0, 0.5, 0.0]), [NAN, 1.0, NAN, NAN, 0.5, 0.0])


def test_a_step_without_a_verdict_has_no_label():
    np.testing.assert_equal(labelled([1.0, None, 0.0]), [NAN, 1.0, NAN, NAN, NAN, 0.0])


def test_nothing_after_the_first_error_if_asked():
    np.testing.assert_equal(labelled([1.0, 0.0, 1.0], until_first_error=True), [NAN, 1.0, NAN, NAN, 0.0, NAN])


def test_steps_are_read_behind_their_last_token():
    algorithm, groups = PRM(Config()), [solution([1.0, None, 0.0])]
    (row,) = algorithm.refine(build_samples(groups, algorithm.advantages(groups)))
    assert [3, 7] == np.flatnonzero(row.loss_mask).tolist()
    assert [1.0, 0.0] == row.advantages[row.loss_mask].tolist()


def test_every_labelled_step_weighs_the_same():
    algorithm, groups = PRM(Config()), [solution([1.0, None, 0.0])]
    rows = weigh(algorithm.refine(build_samples(groups, algorithm.advantages(groups))), algorithm.needs.streams)
    assert [0.5, 0.5] == rows[0].token_weight["value"][rows[0].loss_mask].tolist()


@pytest.mark.parametrize(("labels", "expected"), [([1.0, 0.0, 1.0], 0.3047555609), ([0.9, 0.2, 0.6], 0.5047555609)])
def test_golden_losses(labels, expected):
    assert pytest.approx(expected, abs=1e-9) == float(loss([2.0, -1.0, 0.5], labels)[0].total.detach())


def test_gradient_is_the_distance_from_the_label():
    found, values = loss([2.0, -1.0, 0.5], [0.9, 0.2, 0.6])
    found.total.backward()
    torch.testing.assert_close(values.grad, (torch.sigmoid(values.detach()) - f64([0.9, 0.2, 0.6])) / 3)


def test_accuracy_leaves_out_steps_that_could_be_either():
    assert pytest.approx(0.5) == loss([2.0, 3.0, 0.5], [1.0, 0.5, 0.0])[0].stats["accuracy"].result


def test_a_solution_without_any_verdict_trains_nothing():
    algorithm, groups = PRM(Config()), [solution([None, None, None])]
    (row,) = algorithm.refine(build_samples(groups, algorithm.advantages(groups)))
    assert not row.loss_mask.any()
