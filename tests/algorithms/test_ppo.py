"""PPO: credit from values and rewards, every term of the loss, controllers and what they keep."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from posttrain.algorithms.ppo import PPO, Config
from posttrain.config import validate
from posttrain.errors import ConfigError
from posttrain.types import Ending
from tests.algorithms.critic_samples import advantages, f1_batch, returns, sample
from tests.algorithms.examples import group
from tests.golden import fixtures as f1

PLAIN = {"kl_coefficient": 0.0, "whiten": False}
NAN = float("nan")


def ppo(**settings):
    return PPO(Config(**(PLAIN | settings)))


def refined(samples, **settings):
    return ppo(**settings).refine(samples)


def two_turns(values=(0.5, 0.4, 0.6, 0.3, 0.8), gap=2, **fields):
    """F2 without its first reward: turn 0 of three tokens, ``gap`` tool tokens, turn 1 of two tokens, reward 1."""
    row = [*values[:3], *[9.0] * gap, *values[3:]]
    mask = [True] * 3 + [False] * gap + [True] * 2
    return sample(row, mask=mask, turns=[0, 0, 0, 1, 1], **fields)


def test_lambda_one_is_the_return_less_the_value():
    found = refined([sample([0.5, 0.2, 0.9], reward=2.0)], gae_lambda=1.0)
    assert [pytest.approx([1.5, 1.8, 1.1])] == advantages(found)
    assert [[2.0, 2.0, 2.0]] == returns(found)


def test_lambda_zero_is_one_step_of_temporal_difference():
    found = refined([sample([0.5, 0.2, 0.9], reward=2.0)], gae_lambda=0.0)
    assert [pytest.approx([-0.3, 0.7, 1.1])] == advantages(found)
    assert [pytest.approx([0.2, 0.9, 2.0])] == returns(found)


def test_discount_is_per_sampled_token():
    found = refined([sample([0.0, 0.0, 0.0], reward=1.0)], gae_lambda=1.0, gamma=0.5)
    assert [[0.25, 0.5, 1.0]] == advantages(found)


def test_golden_turn_rewards_give_golden_advantages():
    algorithm = ppo()
    algorithm._earned = {(0, 0): [0.2, 1.0]}
    found = algorithm.refine([two_turns()])
    assert [pytest.approx([0.59133875, 0.727725, 0.5555, 0.69, 0.2], abs=1e-9)] == advantages(found)
    assert [pytest.approx([1.09133875, 1.127725, 1.1555, 0.99, 1.0], abs=1e-9)] == returns(found)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"gae": "turn_truncated", "turn_gamma": 1.0}, [-0.00025, 0.105, -0.1, 0.69, 0.2]),
        ({"gae_lambda": 1.0, "turn_gamma": 0.95, "turn_lambda": 1.0}, [0.65, 0.75, 0.55, 0.7, 0.2]),
        ({"gae": "turn", "gamma": 0.99, "gae_lambda": 0.9}, [0.6207, 0.6207, 0.6207, 0.7, 0.7]),
        ({"gae": "bi_level", "turn_gamma": 0.95}, [0.57780125, 0.713475, 0.5405, 0.69, 0.2]),
    ],
)
def test_golden_turn_kinds(settings, expected):
    algorithm = ppo(**settings)
    algorithm._earned = {(0, 0): [0.2, 1.0]}
    assert [pytest.approx(expected, abs=1e-9)] == advantages(algorithm.refine([two_turns()]))


def test_turn_level_trains_the_critic_at_first_tokens_alone():
    algorithm = ppo(gae="turn", gamma=0.99, gae_lambda=0.9)
    algorithm._earned = {(0, 0): [0.2, 1.0]}
    (found,) = returns(algorithm.refine([two_turns()]))
    assert [True, False, False, True, False] == [not math.isnan(x) for x in found]
    assert pytest.approx([1.1207, 1.0]) == [found[0], found[3]]


@pytest.mark.parametrize("kind", ["token", "turn_truncated", "turn", "bi_level"])
def test_tool_tokens_change_no_advantage(kind):
    found = [advantages(refined([two_turns(gap=gap)], gae=kind)) for gap in (0, 1, 10, 100, 500)]
    assert [found[0]] * 5 == found


def test_each_turn_keeps_its_own_reward_when_groups_give_them():
    algorithm = ppo()
    algorithm.advantages([group([1.5])])
    assert {(0, 0): [1.5]} == algorithm._earned


def test_a_rollout_that_a_limit_cut_off_goes_on_with_the_value_behind_it():
    cut = sample([0.5, 0.2], reward=1.0, ending=Ending.LENGTH, bootstrap=0.7)
    assert [pytest.approx([1.2, 1.5])] == advantages(refined([cut], gae_lambda=1.0))


def test_a_rollout_that_ended_goes_on_with_nothing():
    ended = sample([0.5, 0.2], reward=1.0, ending=Ending.STOP, bootstrap=0.7)
    assert [pytest.approx([0.5, 0.8])] == advantages(refined([ended], gae_lambda=1.0))


def test_a_limit_can_count_as_the_end():
    cut = sample([0.5, 0.2], reward=1.0, ending=Ending.LENGTH, bootstrap=0.7)
    assert [pytest.approx([0.5, 0.8])] == advantages(refined([cut], gae_lambda=1.0, bootstrap=False))


def test_segments_of_a_rollout_are_one_line():
    whole = two_turns(gap=0)
    first = sample([0.5, 0.4, 0.6], reward=1.0)
    second = sample([0.3, 0.8], turns=[1, 1], reward=1.0)
    joined = advantages(refined([first, second]))
    assert advantages(refined([whole]))[0] == joined[0] + joined[1]


def test_only_the_last_segment_of_a_cut_rollout_bootstraps():
    parts = [sample([0.0], reward=0.0, ending=Ending.LENGTH, bootstrap=b) for b in (5.0, 7.0)]
    assert [[7.0], [7.0]] == advantages(refined(parts, gae_lambda=1.0))


def test_rollouts_do_not_see_each_other():
    one, other = sample([0.5, 0.2], reward=3.0), sample([0.1], reward=-9.0, rollout=1)
    assert advantages(refined([one])) == advantages(refined([one, other]))[:1]


def test_a_row_without_sampled_tokens_costs_nothing():
    empty = sample([0.3], mask=[False], rollout=1)
    assert [[], []] == [advantages(refined([empty]))[0], advantages(refined([sample([0.5]), empty]))[1]]


def test_kl_in_the_reward_is_paid_token_by_token():
    one = sample([0.0, 0.0], reward=1.0, old_logprobs=[-1.0, -2.0], ref_logprobs=[-1.5, -1.0])
    found = refined([one], kl_coefficient=0.1, gae_lambda=1.0)
    assert [pytest.approx([1.0 + 0.1 - 0.05, 1.0 + 0.1])] == advantages(found)


def test_kl_in_the_loss_leaves_the_reward_alone():
    one = sample([0.0, 0.0], reward=1.0, old_logprobs=[-1.0, -2.0], ref_logprobs=[-1.5, -1.0])
    found = refined([one], kl_coefficient=0.1, gae_lambda=1.0, kl_place="loss", kl_estimator="k2")
    assert [[1.0, 1.0]] == advantages(found)


def test_whitening_is_over_all_tokens_and_leaves_the_targets():
    rows = [sample([0.5, 0.2, 0.9], reward=2.0), sample([0.4], reward=-1.0, rollout=1)]
    plain, white = refined(rows), refined(rows, whiten=True)
    numbers = np.concatenate(advantages(white))
    assert (pytest.approx(0.0, abs=1e-12), pytest.approx(1.0, abs=1e-6)) == (numbers.mean(), numbers.std(ddof=1))
    assert returns(plain) == returns(white)


def test_nan_behind_the_mask_does_no_harm():
    clean = two_turns()
    assert not np.isnan(np.concatenate(advantages(refined([clean])))).any()
    assert np.isnan(clean.values).any()


def test_explained_variance_is_of_the_values_before_the_update():
    algorithm = ppo(gae_lambda=1.0)
    algorithm.refine([sample([0.8, 0.8], reward=1.0), sample([0.1, 0.3], reward=0.0, rollout=1)])
    targets, values = np.array([1, 1, 0, 0]), np.array([0.8, 0.8, 0.1, 0.3])
    expected = 1 - np.var(targets - values) / np.var(targets)
    assert pytest.approx(expected) == algorithm.numbers()["value/explained"]
    assert 0.5 == algorithm.numbers()["return/mean"]


def test_samples_without_values_are_refused():
    with pytest.raises(ValueError, match="refine needs values"):
        refined([replace(sample([0.5]), values=None)])


def test_advantages_are_zero_until_values_are_known():
    assert [[0.0, 0.0]] == [[float(a) for a in row] for row in ppo().advantages([group([1.0, 0.0])])]


def total(algorithm, batch, values, entropy=None):
    logprobs = f1.new.clone().requires_grad_()
    return algorithm.loss(batch, logprobs, entropy, values), logprobs


def test_policy_and_value_loss_are_the_golden_ones():
    algorithm = ppo(value_clip=None)
    batch, values = f1_batch(algorithm.needs.streams)
    found, _ = total(algorithm, batch, values)
    critic = 0.5 * float(((values.detach() - batch.returns) ** 2).mean())
    assert pytest.approx(-0.0566905496003145, abs=1e-9) == found.stats["loss/policy"].value
    assert pytest.approx(critic, abs=1e-12) == found.stats["loss/value"].value
    assert pytest.approx(-0.0566905496003145 + critic, abs=1e-9) == float(found.total.detach())


def test_gradients_are_the_closed_forms():
    algorithm = ppo(value_clip=None, value_coefficient=0.7)
    batch, values = f1_batch(algorithm.needs.streams)
    found, logprobs = total(algorithm, batch, values)
    found.total.backward()
    ratio = (f1.new - f1.old).exp()
    stopped = ((f1.A > 0) & (ratio > 1.2)) | ((f1.A < 0) & (ratio < 0.8))
    torch.testing.assert_close(logprobs.grad, torch.where(stopped, 0.0, -ratio * f1.A) / 13, atol=1e-12, rtol=0)
    torch.testing.assert_close(values.grad, 0.7 * (values.detach() - batch.returns) / 13, atol=1e-12, rtol=0)


def test_value_clip_takes_the_larger_error():
    algorithm = ppo(value_clip=0.2)
    batch, values = f1_batch(algorithm.needs.streams)
    held = batch.old_values + (values - batch.old_values).clamp(-0.2, 0.2)
    expected = 0.5 * torch.maximum((values - batch.returns) ** 2, (held - batch.returns) ** 2).mean()
    found, _ = total(algorithm, batch, values)
    assert pytest.approx(float(expected.detach()), abs=1e-12) == found.stats["loss/value"].value
    assert 0 < found.stats["value/clip_share"].result < 1


def test_the_critic_is_not_trained_where_there_is_no_target():
    algorithm = ppo(value_clip=None)
    batch, values = f1_batch(algorithm.needs.streams)
    batch.returns[3:] = NAN
    found, _ = total(algorithm, batch, values)
    found.total.backward()
    assert (True, 0) == (bool(values.grad[:3].all()), int(values.grad[3:].count_nonzero()))


def test_without_any_target_the_value_loss_is_zero():
    algorithm = ppo()
    batch, values = f1_batch(algorithm.needs.streams)
    batch.returns[:] = NAN
    assert 0.0 == total(algorithm, batch, values)[0].stats["loss/value"].value


def test_first_update_is_reinforce():
    algorithm = ppo()
    batch, values = f1_batch(algorithm.needs.streams, on_policy=True)
    found, logprobs = total(algorithm, batch, values)
    found.total.backward()
    torch.testing.assert_close(logprobs.grad, -f1.A / 13, atol=1e-12, rtol=0)


def test_dual_clip_bounds_what_a_bad_token_costs():
    algorithm, bounded = ppo(), ppo(dual_clip=1.01)
    batch, values = f1_batch(algorithm.needs.streams)
    assert total(bounded, batch, values)[0].stats["loss/policy"].value < (
        total(algorithm, batch, values)[0].stats["loss/policy"].value
    )


def test_kl_in_the_loss_is_beta_times_the_estimate():
    algorithm = ppo(kl_coefficient=0.04, kl_place="loss", kl_estimator="k3")
    batch, values = f1_batch(algorithm.needs.streams)
    assert pytest.approx(0.04 * 0.0865681280, abs=1e-9) == total(algorithm, batch, values)[0].stats["loss/kl"].value


@pytest.mark.parametrize(("place", "estimator"), [("reward", "k3"), ("loss", "k1")])
def test_a_wrong_estimator_is_refused_with_the_reason(place, estimator):
    with pytest.raises(ConfigError, match="gradient"):
        validate(Config, {"kl_place": place, "kl_estimator": estimator}, where="test")


def test_entropy_bonus_lowers_the_loss():
    algorithm = ppo(entropy_coefficient=0.01)
    batch, values = f1_batch(algorithm.needs.streams)
    entropy = torch.full((13,), 2.0, dtype=torch.float64)
    assert pytest.approx(-0.02) == total(algorithm, batch, values, entropy)[0].stats["loss/entropy"].value


def test_a_targeted_bonus_follows_the_trace_of_the_paper():
    algorithm = ppo(entropy_target=0.2)
    used = []
    for measured in (0.5, 0.3, 0.15, 0.1, 0.25, 0.1):
        used.append(algorithm.steering.bonus)
        algorithm.observe({"entropy": measured})
    assert pytest.approx([0, 0, 0, 0.005, 0.01, 0]) == used


def kl_rows():
    return [sample([0.0, 0.0], reward=1.0, old_logprobs=[-1.0, -1.0], ref_logprobs=[-4.0, -4.0])]


def test_an_adaptive_beta_moves_after_the_batch_it_was_measured_on():
    algorithm = ppo(kl_coefficient=0.2, kl_target=3.0, kl_horizon=10.0)
    algorithm.refine(kl_rows())
    during = algorithm.steering.kl.coefficient
    algorithm.observe({})
    assert (0.2, pytest.approx(0.2 * (1 + 0.2 / 10))) == (during, algorithm.steering.kl.coefficient)


@pytest.mark.parametrize(("unit", "measured"), [("sequence-sum", 6.0), ("sequence-mean", 3.0), ("token-mean", 3.0)])
def test_the_unit_of_the_target_is_named(unit, measured):
    algorithm = ppo(kl_coefficient=0.2, kl_target=measured, kl_unit=unit)
    algorithm.refine(kl_rows())
    algorithm.observe({})
    assert 0.2 == algorithm.steering.kl.coefficient


def test_an_adaptive_beta_scales_the_kl_in_the_loss():
    algorithm = ppo(kl_coefficient=0.2, kl_target=3.0, kl_place="loss", kl_estimator="k3")
    algorithm.restore(algorithm.state() | {"kl": 0.4})
    batch, values = f1_batch(algorithm.needs.streams)
    assert pytest.approx(0.4 * 0.0865681280, abs=1e-8) == total(algorithm, batch, values)[0].stats["loss/kl"].value


def test_what_the_controllers_know_survives_a_checkpoint():
    one = ppo(kl_coefficient=0.2, kl_target=3.0, entropy_target=0.2)
    one.refine(kl_rows())
    one.observe({"entropy": 0.1})
    other = ppo(kl_coefficient=0.2, kl_target=3.0, entropy_target=0.2)
    other.restore(json.loads(json.dumps(one.state())))
    assert one.numbers()["kl_coefficient"] == other.numbers()["kl_coefficient"]
    assert (one.steering.kl, one.steering.bonus) == (other.steering.kl, other.steering.bonus)


def test_a_target_needs_a_beta_to_begin_with():
    with pytest.raises(ConfigError, match="begin above 0"):
        validate(Config, {"kl_target": 1.0, "kl_coefficient": 0}, where="test")


@pytest.mark.parametrize(
    ("settings", "streams", "reference"),
    [
        ({}, {"policy", "value"}, False),
        ({"kl_coefficient": 0.1}, {"policy", "value"}, True),
        ({"kl_coefficient": 0.1, "kl_place": "loss", "kl_estimator": "k2"}, {"policy", "value", "kl"}, True),
        ({"entropy_coefficient": 0.1}, {"policy", "value", "entropy"}, False),
    ],
)
def test_needs_are_what_the_terms_ask_for(settings, streams, reference):
    needs = ppo(**settings).needs
    assert (streams, reference, True) == (set(needs.streams), needs.ref_logprobs, needs.values)


def test_the_defaults_are_the_papers():
    found = Config()
    assert (0.2, 0.2, 0.02, 1.0, 0.95, 0.2) == (
        found.clip_low,
        found.clip_high,
        found.kl_coefficient,
        found.gamma,
        found.gae_lambda,
        found.value_clip,
    )
