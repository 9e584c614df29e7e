"""Values on samples when an update starts: the state before each token, and behind a row that a limit cut off."""

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch

from posttrain.algorithms.ppo import PPO, Config
from posttrain.batches.pack import pack
from posttrain.loops.update import bootstrapped, with_values
from posttrain.types import Ending
from tests.learners.critics import build
from tests.models.samples import sample

LAYOUTS = ("padded", "packed", "shared")


def row(ending=Ending.STOP, mask=None, **fields):
    return sample([5, 6, 7], [8, 9, 10, 11], mask=mask, ending=ending, reward=1.0, **fields)


def hand_computed(learner, one):
    """The critic's value of the state after each token of the row, from transformers' own forward."""
    critic = learner._critic
    with torch.no_grad():
        hidden = critic.own.model(input_ids=torch.tensor(one.ids)[None], use_cache=False).last_hidden_state[0]
        return critic.head(hidden).double().numpy()


def valued(learner, samples, layout="shared"):
    return with_values(samples, learner, functools.partial(pack, token_budget=64, layout=layout))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_value_is_that_of_the_state_before_its_token(layout):
    learner, one = build(), row()
    (found,) = valued(learner, [one], layout)
    np.testing.assert_allclose(found.values[3:], hand_computed(learner, one)[2:6], atol=1e-5)
    assert np.isnan(found.values[:3]).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_bootstrap_is_read_at_the_rows_own_last_position(layout):
    learner, one = build(), row(Ending.LENGTH)
    (found,) = valued(learner, [one], layout)
    assert pytest.approx(hand_computed(learner, one)[6], abs=1e-5) == found.bootstrap
    assert len(one) == len(found.values)


def test_an_ended_rollout_has_no_bootstrap():
    assert 0.0 == valued(build(), [row()])[0].bootstrap


def test_rows_keep_their_order_and_their_ids():
    rows = [row(Ending.LENGTH), row(rollout=1), sample([9], [10], group=1, ending=Ending.LENGTH)]
    for one, found in zip(rows, valued(build(), rows), strict=True):
        assert one.ids is found.ids
        assert one.loss_mask is found.loss_mask


def test_a_cut_row_that_samples_nothing_stays_as_it_is():
    one = row(Ending.LENGTH, mask=[False] * 4)
    assert one is bootstrapped(one)


def test_gae_by_hand_through_the_real_path():
    learner, one = build(), row(Ending.LENGTH)
    states = hand_computed(learner, one)
    (found,) = PPO(Config(kl_coefficient=0.0, whiten=False, gae_lambda=0.0, gamma=0.9)).refine(valued(learner, [one]))
    rewards = np.array([0, 0, 0, 1.0])
    np.testing.assert_allclose(found.advantages[3:], rewards + 0.9 * states[3:7] - states[2:6], atol=1e-5)


def test_tool_tokens_between_turns_are_no_steps():
    learner = build()
    one = replace(row(mask=[True, False, False, True]), turns=np.array([-1, -1, -1, 0, -1, -1, 1]))
    (found,) = PPO(Config(kl_coefficient=0.0, whiten=False, gae_lambda=0.0)).refine(valued(learner, [one]))
    states = hand_computed(learner, one)
    np.testing.assert_allclose(found.advantages[[3, 6]], [states[5] - states[2], 1.0 - states[5]], atol=1e-5)
