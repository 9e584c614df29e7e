"""The checks of preference losses pass on a healthy run and fail on a planted fault."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch

from posttrain.algorithms.dpo import DPO, Config
from posttrain.batches.build import build_samples
from posttrain.checks.preferences import check_equal_answers, check_label_balance, check_preference_start
from posttrain.checks.run import demonstrations, run_checks
from posttrain.tasks.source import task_set
from posttrain.types import Loss
from tests.checks.subjects import Wrapped, build_subject

PAIRS = {"rewards": None, "batches": {"demonstrations_per_step": 4}}


@pytest.fixture(scope="module")
def subject():
    return build_subject("dpo", **PAIRS)


@pytest.fixture(scope="module")
def samples(subject):
    groups = demonstrations(subject)
    return build_samples(groups, [[np.asarray(1.0) for _ in group.rollouts] for group in groups])


class WrongStart(DPO):
    """Forgets the reference of the rejected answer."""

    def loss(self, batch, logprobs, entropy, values):
        return super().loss(replace(batch, ref_logprobs=batch.ref_logprobs * 0.9), logprobs, entropy, values)


class Restless(DPO):
    """Moves even where nothing is better."""

    def loss(self, batch, logprobs, entropy, values):
        found = super().loss(batch, logprobs, entropy, values)
        return Loss(total=found.total + 1e-3 * logprobs.sum(), stats=found.stats)


class OtherReference(Wrapped):
    """A learner whose reference is another model."""

    def logprobs(self, microbatch, *, reference=False):
        values, entropy = self.inner.logprobs(microbatch, reference=reference)
        return (values * 1.1 if reference else values), entropy


def start(subject, samples, algorithm=None, learner=None):
    learner = learner or subject.learner
    return check_preference_start(samples, learner, algorithm or subject.algorithm, subject.pack)


def test_a_group_holds_the_given_answers(subject):
    assert {2} == {len(group.rollouts) for group in demonstrations(subject)}


def test_dpo_starts_at_ln_2(subject, samples):
    found = start(subject, samples)
    assert ("pass", "preference loss starts at 0.6931") == (found.status, found.name)
    assert "accuracy 0.00" in found.measured


@pytest.mark.parametrize("loss", ["ipo_sum", "nca", "hinge", "apo_zero"])
def test_other_losses_start_where_they_should(subject, samples, loss):
    assert "pass" == start(subject, samples, DPO(Config(loss=loss))).status


def test_a_wrong_loss_is_noticed(subject, samples):
    assert "fail" == start(subject, samples, WrongStart(Config())).status


def test_another_reference_is_noticed(subject, samples):
    assert "fail" == start(subject, samples, learner=OtherReference(subject.learner)).status


def test_without_a_pair_there_is_nothing_to_try(subject, samples):
    alike = [replace(sample, reward=0.5, advantages=np.where(sample.loss_mask, 0.0, np.nan)) for sample in samples]
    assert "skip" == start(subject, alike).status


def test_equal_answers_move_nothing(subject, samples):
    assert "pass" == check_equal_answers(samples, subject.learner, subject.algorithm).status


def test_a_restless_loss_is_noticed(subject, samples):
    assert "fail" == check_equal_answers(samples, subject.learner, Restless(Config())).status


@pytest.mark.parametrize(
    ("good", "bad", "weight", "status"),
    [
        (4, 4, 1.0, "pass"),
        (4, 4, 1.33, "pass"),
        (4, 4, 2.0, "warn"),
        (2, 4, 1.0, "warn"),
        (2, 4, 2.0, "pass"),
        (3, 0, 1.0, "warn"),
    ],
)
def test_labels_that_do_not_balance_are_worth_a_word(good, bad, weight, status):
    rows = [{"prompt": f"{n}", "completion": "1", "label": n < good} for n in range(good + bad)]
    tasks = task_set(rows, data="labels")
    assert status == check_label_balance(tasks, desirable_weight=weight, undesirable_weight=1.0).status


def test_kto_has_its_labels_checked():
    names = [found.name for found in asyncio.run(run_checks(build_subject("kto", **PAIRS)))]
    assert {"good and bad answers balance", "preference loss starts at 0.5000"} <= set(names)


def test_the_checks_leave_no_gradient(subject, samples):
    start(subject, samples)
    check_equal_answers(samples, subject.learner, subject.algorithm)
    gradients = [tensor.grad for _, tensor in subject.learner.named_tensors() if tensor.grad is not None]
    assert not any(bool(torch.any(gradient != 0)) for gradient in gradients)
