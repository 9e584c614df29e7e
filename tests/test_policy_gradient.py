"""KL sections, books of tokens, turns and rewards: what the algorithm files share."""

import dataclasses

import pytest
import torch

from posttrain.batches.build import build_samples
from posttrain.errors import ConfigError
from posttrain.functional.kl import k1, k3
from posttrain.policy_gradient import (
    LossKL,
    PlacedKL,
    by_group,
    kl_term,
    less_kl_to_go,
    open_book,
    over_batch,
    token_turns,
    turn_rewards,
)
from tests.algorithms.examples import batch, logprobs
from tests.algorithms.family import anchored, critic_free_names, f1_group, group_of, make, rollout, segment
from tests.golden.fixtures import SAMPLES, A, f64, new, old, ref

ALL = {"policy": "token-mean", "kl": "token-mean"}


@pytest.mark.parametrize("name", sorted(set(critic_free_names()) - {"rft"}))
def test_k1_in_the_loss_is_refused_with_the_reason(name):
    place = {"kl_place": "loss"} if "kl_place" in type(make(name).config).model_fields else {}
    with pytest.raises(ConfigError, match="expected gradient 0"):
        make(name, kl_estimator="k1", kl_coefficient=0.1, **place)


@pytest.mark.parametrize("name", ["grpo", "reinforce", "reinforce_pp", "reinforce_pp_baseline", "rloo", "remax"])
@pytest.mark.parametrize("estimator", ["k2", "k3", "k3_k2", "rho_k3"])
def test_anything_but_k1_in_the_reward_is_refused_with_the_reason(name, estimator):
    with pytest.raises(ConfigError, match=f"{estimator} in the reward gives a biased gradient"):
        make(name, kl_place="reward", kl_estimator=estimator)


@pytest.mark.parametrize("name", ["grpo", "dapo", "gspo", "rloo"])
def test_a_detached_ratio_on_k3_is_refused_with_the_reason(name):
    with pytest.raises(ConfigError, match="opposite KL"):
        make(name, kl_estimator="sg_rho_k3")


def test_an_unknown_estimator_is_refused():
    with pytest.raises(ConfigError, match="kl_estimator"):
        make("dapo", kl_estimator="k4")


def test_a_penalty_in_the_reward_needs_no_stream_and_one_in_the_loss_does():
    assert {} == PlacedKL(kl_coefficient=0.1, kl_place="reward", kl_estimator="k1").kl_streams
    assert {"kl": "token-mean"} == PlacedKL(kl_coefficient=0.1).kl_streams
    assert {} == LossKL().kl_streams


@pytest.mark.parametrize("estimator", ["k2", "k3_k2"])
def test_the_gradient_in_the_loss_is_the_difference(estimator):
    leaf = logprobs()
    value = kl_term(LossKL(kl_coefficient=1.0, kl_estimator=estimator), batch(streams=ALL), leaf)["kl"]
    (slope,) = torch.autograd.grad(value.sum(), leaf)
    assert (new - ref).tolist() == pytest.approx(slope.tolist(), abs=1e-12)


def test_k3_has_the_gradient_of_the_opposite_kl():
    leaf = logprobs()
    value = kl_term(LossKL(kl_coefficient=2.0), batch(streams=ALL), leaf)["kl"]
    (slope,) = torch.autograd.grad(value.sum(), leaf)
    assert (2 * (1 - (ref - new).exp())).tolist() == pytest.approx(slope.tolist(), abs=1e-12)


def test_rho_k3_has_the_right_gradient_on_policy():
    leaf = logprobs()
    given = batch(streams=ALL, on_policy=True)
    value = kl_term(LossKL(kl_coefficient=1.0, kl_estimator="rho_k3"), given, leaf)["kl"]
    (slope,) = torch.autograd.grad(value.sum(), leaf)
    assert k3(new, ref).tolist() == pytest.approx(value.tolist(), abs=1e-12)
    assert (new - ref).tolist() == pytest.approx(slope.tolist(), abs=1e-12)


def samples():
    groups = [f1_group()]
    return anchored(build_samples(groups, make("dr_grpo").advantages(groups)))


def test_a_book_reads_the_trained_tokens_in_order():
    book = open_book(samples())
    assert SAMPLES.tolist() == book.rows.tolist()
    assert old.tolist() == book.read("old_logprobs").tolist()
    assert (4, [0] * 4) == (book.count, book.groups.tolist())


def test_a_book_writes_what_it_read():
    book = open_book(samples())
    again = open_book(book.written("advantages", 2 * book.read("advantages")))
    assert (2 * A).tolist() == again.read("advantages").tolist()


def test_a_missing_field_is_named():
    with pytest.raises(ValueError, match="values"):
        open_book(samples()).read("values")


def test_segments_of_a_rollout_are_one_row():
    one = rollout(0, 1.0, segment([1, 1]), segment([1]))
    book = open_book(build_samples([group_of(one, rollout(1, 0.0))], [[f64(1.0).numpy(), f64(0.0).numpy()]]))
    assert [0, 0, 0, 1, 1] == book.rows.tolist()
    assert [1.0, 0.0] == book.rewards.tolist()


def test_scattered_segments_are_refused():
    one = rollout(0, 1.0, segment([1, 1]), segment([1]))
    first, other, second = build_samples([group_of(one, rollout(1, 0.0))], [[f64(1.0).numpy(), f64(0.0).numpy()]])
    with pytest.raises(ValueError, match="follow each other"):
        open_book([first, second, other])


def test_the_kl_to_go_of_a_token_is_the_sum_from_there_on():
    gaps = k1(old, ref)
    expected = [float(gaps[t:][SAMPLES[t:] == SAMPLES[t]].sum()) for t in range(13)]
    assert expected == pytest.approx(open_book(samples()).kl_to_go().tolist(), abs=1e-12)


def test_a_kl_in_the_reward_is_taken_from_each_token_on():
    book = open_book(samples())
    expected = (A - 0.1 * book.kl_to_go()).tolist()
    found = open_book(less_kl_to_go(samples(), 0.1)).read("advantages").tolist()
    assert expected == pytest.approx(found, abs=1e-12)


@pytest.mark.parametrize("name", ["grpo", "reinforce", "remax", "gspo_token"])
def test_algorithms_take_it_after_their_own_estimate(name):
    plain = make(name, kl_coefficient=0.0)
    penalised = make(name, kl_coefficient=0.1, kl_place="reward", kl_estimator="k1")
    groups = [f1_group(greedy=rollout(9, 0.5))]
    bare = anchored(build_samples(groups, plain.advantages(groups)))
    expected = open_book(less_kl_to_go(bare, 0.1)).read("advantages").tolist()
    assert expected == open_book(penalised.refine(bare)).read("advantages").tolist()


def test_rloo_takes_the_whole_kl_before_the_baseline():
    algorithm = make("rloo", kl_coefficient=0.1)
    groups = [f1_group()]
    found = algorithm.refine(anchored(build_samples(groups, algorithm.advantages(groups))))
    total = torch.zeros(4, dtype=torch.float64).index_add(0, SAMPLES, old - ref)
    rewards = f64([1.0, 0.0, 1.0, 0.5]) - 0.1 * total
    expected = 4 / 3 * (rewards - rewards.mean())
    assert expected.tolist() == pytest.approx([float(s.advantages[s.loss_mask][0]) for s in found], abs=1e-12)


def test_groups_do_not_see_each_other_and_batches_do():
    groups = [group_of(rollout(0, 1.0), rollout(1, 0.0)), group_of(rollout(0, 4.0), rollout(1, 1.0), position=1)]
    spread = lambda rewards: rewards - rewards.mean()  # noqa: E731
    assert [[0.5, -0.5], [1.5, -1.5]] == [[float(a) for a in row] for row in by_group(groups, spread)]
    assert [[-0.5, -1.5], [2.5, -0.5]] == [[float(a) for a in row] for row in over_batch(groups, spread)]


def test_turns_of_tokens_skip_what_was_not_sampled():
    one = rollout(0, 1.0, segment([1, 0, 1], turns=[0, 1]), segment([1, 1], turns=[2, 2]), turn_count=3)
    assert [0, 1, 2, 2] == token_turns(one).tolist()


def test_the_last_turn_earns_what_no_turn_was_given():
    one = rollout(0, 2.0, turn_count=3, turn_scores=({"a": 0.5, "b": 0.25}, {}, {"a": 0.25}))
    assert [0.75, 0.0, 1.25] == turn_rewards(one)
    assert [0.0, 0.0, 2.0] == turn_rewards(dataclasses.replace(one, turn_scores=()))
