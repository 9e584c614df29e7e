"""The distance of a teacher before the first step, and samples on which gradients can be compared."""

from dataclasses import replace

import numpy as np
import pytest

from posttrain.batches.pack import pack
from posttrain.checks.teacher import check_teacher, disagreeing
from posttrain.config import Teacher as Section
from posttrain.learners.local import Config, LocalLearner
from posttrain.models.teacher import Teachers
from posttrain.types import Needs
from tests.models.samples import ragged_groups
from tests.tiny_models import build_tiny


def build(teacher):
    teachers = Teachers([Section(path="x")], [teacher])
    return LocalLearner(Config(), build_tiny(), 1.0, 10, Needs(teacher_logprobs=True), teachers=teachers)


def packer(samples):
    return pack(samples, token_budget=10_000, layout="padded")


def trained():
    return [sample for sample in ragged_groups() if sample.loss_mask.any()]


def test_the_students_twin_is_near():
    found = check_teacher(trained(), build(build_tiny()), packer)
    assert ("pass", "0.000 nats per token over 74 tokens") == (found.status, found.measured.replace("-", ""))


def test_a_stranger_is_far_and_that_is_a_warning():
    teacher = build_tiny(seed=3)
    for parameter in teacher.parameters():
        parameter.data.mul_(6)
    found = check_teacher(trained(), build(teacher), packer)
    assert "warn" == found.status
    assert float(found.measured.split()[0]) > 0.15
    assert "warm start first" in found.expected


def test_a_teacher_that_agrees_is_moved_a_nat_away():
    samples, learner = trained(), build(build_tiny())
    for sample in disagreeing(samples, learner, packer):
        (microbatch,) = packer([replace(sample)])
        own, _ = learner.logprobs(microbatch)
        assert own - 1 == pytest.approx(sample.teacher_logprobs[sample.loss_mask], abs=1e-4)
        assert np.isnan(sample.teacher_logprobs[~sample.loss_mask]).all()
