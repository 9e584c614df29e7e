"""VAPO: two lambdas, imitation of right rollouts, clip-higher."""

import pytest
import torch

from posttrain.algorithms.ppo import PPO
from posttrain.algorithms.ppo import Config as PPOConfig
from posttrain.algorithms.vapo import VAPO, Config
from tests.algorithms.critic_samples import advantages, f1_batch, returns, sample
from tests.golden import fixtures as f1


def vapo(**settings):
    return VAPO(Config(**({"whiten": False} | settings)))


def long_row(length, **fields):
    return sample([0.1 + 0.01 * place for place in range(length)], **fields)


def with_lambda(rows, value):
    return PPO(PPOConfig(kl_coefficient=0.0, whiten=False, gae_lambda=value)).refine(rows)


def test_the_critic_learns_the_return_itself():
    assert [[1.0] * 30] == [pytest.approx(row) for row in returns(vapo().refine([long_row(30)]))]


@pytest.mark.parametrize(("length", "expected"), [(10, 0.0), (20, 0.0), (50, 0.6), (100, 0.8)])
def test_the_policys_lambda_follows_the_length(length, expected):
    row = long_row(length)
    assert [pytest.approx(advantages(with_lambda([row], expected))[0])] == advantages(vapo().refine([row]))


def test_each_rollout_has_its_own_lambda():
    rows = [long_row(10), long_row(100, rollout=1)]
    found = advantages(vapo().refine(rows))
    assert [pytest.approx(advantages(vapo().refine([row]))[0]) for row in rows] == found


def test_right_rollouts_are_imitated_and_only_they():
    algorithm = vapo(clip_high=0.2)
    batch, values = f1_batch(algorithm.needs.streams, positive=(True, False, True, False))
    logprobs = f1.new.clone().requires_grad_()
    found = algorithm.loss(batch, logprobs, None, values)
    assert pytest.approx(0.1 * 0.79625, abs=1e-9) == found.stats["loss/nll"].value
    assert pytest.approx(0.0229344504, abs=1e-9) == found.stats["loss/policy"].value + found.stats["loss/nll"].value


def test_imitation_has_the_gradient_of_the_likelihood():
    algorithm = vapo(nll_coefficient=1.0)
    batch, values = f1_batch(algorithm.needs.streams, positive=(True, False, True, False))
    logprobs, plain = f1.new.clone().requires_grad_(), f1.new.clone().requires_grad_()
    algorithm.loss(batch, logprobs, None, values).total.backward()
    without = vapo(nll_coefficient=0.0)
    without.loss(batch, plain, None, values).total.backward()
    right = (f1.SAMPLES == 0) | (f1.SAMPLES == 2)
    torch.testing.assert_close(logprobs.grad - plain.grad, torch.where(right, -1.0 / 8, 0.0).double())


def test_without_imitation_there_is_no_stream_for_it():
    assert {"policy", "value"} == set(vapo(nll_coefficient=0.0).needs.streams)


def test_the_upper_clip_is_higher():
    found = Config()
    assert (0.2, 0.28, 0.05, 1.0, 0.1) == (
        found.clip_low,
        found.clip_high,
        found.alpha,
        found.critic_lambda,
        found.nll_coefficient,
    )


def test_explained_variance_is_reported():
    algorithm = vapo()
    algorithm.refine([long_row(30), long_row(30, rollout=1, reward=0.0)])
    assert {"value/explained", "return/mean"} == set(algorithm.numbers())
