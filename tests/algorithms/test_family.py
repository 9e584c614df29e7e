"""What holds for every online algorithm: a new file in the folder is walked the moment it exists."""

import dataclasses

import numpy as np
import pytest
import torch

from posttrain.batches.build import moving, weigh
from posttrain.batches.pack import pack
from posttrain.models.rows import token_batch
from tests.algorithms.examples import batch, empty, gradient, logprobs, value
from tests.algorithms.family import (
    critic_free_names,
    f1_group,
    final,
    group_of,
    grouped_names,
    make,
    online_names,
    rollout,
    samples_of,
    segment,
)
from tests.golden.fixtures import A, f64
from tests.learners.learning import build, build_model
from tests.models.samples import widen_norms

NO_PENALTY = {"kl_coefficient": 0.0}
GREEDY = rollout(9, 0.5)


def plain(name):
    """The algorithm without a KL, so that what is left is its answer to rewards."""
    fields = type(make(name).config).model_fields
    return make(name, **(NO_PENALTY if "kl_coefficient" in fields else {}))


def rewarded(rewards, **options):
    return group_of(*(rollout(i, r) for i, r in enumerate(rewards)), **options)


def zeros(count):
    return {"old": torch.full((count,), -1.0), "ref": torch.full((count,), -1.0)}


@pytest.mark.parametrize("name", grouped_names())
@pytest.mark.parametrize("rewards", [[0.7] * 7, [0.1] * 8, [0.3] * 12, [1.0] * 4, [0.0] * 2, [0.3]])
def test_equal_rewards_and_singletons_move_exactly_nothing(name, rewards):
    other = rewarded([1.0, 0.0, 0.25], position=1)
    count = 2 * (len(rewards) + 3)
    found = final(plain(name), rewarded(rewards), other, **zeros(count))
    assert [0.0] * (2 * len(rewards)) == found[: 2 * len(rewards)]


@pytest.mark.parametrize("name", sorted(set(grouped_names()) - {"rloo", "opo", "maxrl", "rft"}))
def test_a_lone_winner_is_pushed_up_and_the_others_down(name):
    found = final(plain(name), rewarded([1.0, 0.0, 0.0, 0.0]), **zeros(8))
    assert all(a > 0 for a in found[:2])
    assert all(a < 0 for a in found[2:])


def test_an_outlier_among_equal_rewards_stays_sane():
    found = final(plain("rloo"), rewarded([0.2, *[0.3] * 7]), **zeros(16))
    assert [-0.1] * 2 == pytest.approx(found[:2], abs=1e-12)
    assert [0.1 / 7] * 14 == pytest.approx(found[2:], abs=1e-12)


@pytest.mark.parametrize("name", critic_free_names())
def test_tool_tokens_change_no_advantage(name):
    known = None
    for tools in (0, 1, 10, 100, 500):
        rows = [segment([1] * 4 + [0] * tools + [1] * 4, turns=[0] * 4 + [1] * 4) for _ in range(3)]
        rewards = enumerate(zip((1.0, 0.0, 0.25), rows, strict=True))
        members = [rollout(i, r, row, turn_count=2) for i, (r, row) in rewards]
        old = torch.linspace(-1.0, -0.1, 24, dtype=torch.float64)
        found = final(make(name), group_of(*members, greedy=GREEDY), old=old, ref=old - 0.2)
        known = known or found
        assert known == found


REINFORCE_AT_ONE = sorted(set(online_names()) & set(critic_free_names()) - {"rft"})


@pytest.mark.parametrize("name", REINFORCE_AT_ONE)
def test_at_ratio_one_the_gradient_is_that_of_reinforce(name):
    algorithm = plain(name)
    given = batch(streams=algorithm.needs.streams, on_policy=True)
    leaf = logprobs()
    slopes = gradient(algorithm.loss(given, leaf, torch.zeros(13, dtype=torch.float64), None), leaf)
    assert (-A * given.token_weight["policy"]).tolist() == pytest.approx(slopes, abs=1e-12)


@pytest.mark.parametrize("name", critic_free_names())
def test_an_empty_batch_is_zero_with_a_live_graph(name):
    algorithm = make(name)
    leaf = torch.zeros(0, dtype=torch.float64, requires_grad=True)
    loss = algorithm.loss(empty(algorithm.needs.streams), leaf, torch.zeros(0, dtype=torch.float64), None)
    assert (0.0, []) == (value(loss), gradient(loss, leaf))


@pytest.mark.parametrize("name", critic_free_names())
@pytest.mark.parametrize("split", [((0, 1), (2, 3)), ((3, 0), (1,), (2,)), ((2, 3, 1, 0),)])
def test_microbatches_and_row_order_change_neither_loss_nor_gradient(name, split):
    algorithm = make(name)
    whole, leaf = one_loss(algorithm, (0, 1, 2, 3))
    parts = [one_loss(algorithm, rows) for rows in split]
    slopes = dict(zip(leaf.tolist(), gradient(whole, leaf), strict=True))
    found = {k: v for part, own in parts for k, v in zip(own.tolist(), gradient(part, own), strict=True)}
    assert value(whole) == pytest.approx(sum(value(part) for part, _ in parts), abs=1e-12)
    assert slopes == pytest.approx(found, abs=1e-12)


def one_loss(algorithm, rows):
    leaf = logprobs(rows)
    given = batch(rows, streams=algorithm.needs.streams)
    if algorithm.needs.data == "demonstrations" and given.groups is None:
        given = dataclasses.replace(given, groups=torch.tensor(rows), rewards=f64([1.0] * len(rows)))
    return algorithm.loss(given, leaf, torch.zeros(len(leaf), dtype=torch.float64), None), leaf


@pytest.fixture(scope="module")
def learner():
    """One float64 learner for all: nothing here takes a step."""
    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    model = build_model(dtype=torch.float64, num_key_value_heads=1, **sizes)
    return build(widen_norms(model))


def learnt(learner, name, budget, layout):
    """Loss and gradient of one step through a real learner on a tiny float64 model."""
    algorithm = make(name)
    group = f1_group(greedy=GREEDY)
    other = group_of(*(rollout(i, r) for i, r in enumerate((0.2, 0.9))), position=1, greedy=GREEDY)
    count = 17
    old = torch.linspace(-4.4, -3.9, count, dtype=torch.float64)
    samples = samples_of(algorithm, group, other, old=old, ref=old + 0.1)
    learner.clear_gradient()
    losses = []

    def loss(*arguments):
        result = algorithm.loss(*arguments)
        losses.append(float(result.total.detach()))
        return result

    weighed = moving(weigh(samples, algorithm.needs.streams, constant=8.0))
    for microbatch in pack(weighed, token_budget=budget, layout=layout):
        learner.forward_backward(microbatch, loss)
    return sum(losses), {n: p.grad.clone() for n, p in learner.named_tensors() if p.grad is not None}


@pytest.mark.parametrize("name", critic_free_names())
def test_loss_and_gradient_through_the_learner_do_not_depend_on_the_microbatches(learner, name):
    whole, slopes = learnt(learner, name, 1000, "padded")
    for budget, layout in ((7, "padded"), (1000, "packed"), (12, "shared")):
        parts, found = learnt(learner, name, budget, layout)
        assert whole == pytest.approx(parts, rel=1e-9, abs=1e-12)
        assert slopes.keys() == found.keys()
        largest = max(float(g.abs().max()) for g in slopes.values())
        assert max(float((slopes[n] - found[n]).abs().max()) for n in slopes) <= 1e-9 * largest


@pytest.mark.parametrize("name", critic_free_names())
def test_masked_places_may_hold_anything(name):
    algorithm = make(name)
    samples = samples_of(algorithm, f1_group(greedy=GREEDY))
    clean = loss_of(algorithm, samples)
    dirty = [
        dataclasses.replace(
            s,
            advantages=np.where(s.loss_mask, s.advantages, np.nan),
            old_logprobs=np.where(s.loss_mask, s.old_logprobs, np.inf),
            ref_logprobs=np.where(s.loss_mask, s.ref_logprobs, np.nan),
        )
        for s in samples
    ]
    assert clean == loss_of(algorithm, dirty)


def loss_of(algorithm, samples):
    microbatch = pack(weigh(samples, algorithm.needs.streams, constant=8.0), token_budget=1000, layout="padded")[0]
    given = token_batch(microbatch, dtype=torch.float64, device="cpu")
    leaf = torch.linspace(-2, -1, len(given.samples), dtype=torch.float64, requires_grad=True)
    loss = algorithm.loss(given, leaf, torch.zeros_like(leaf), None)
    return value(loss), gradient(loss, leaf)


@pytest.mark.parametrize("name", critic_free_names())
def test_needs_say_what_the_loss_reads(name):
    algorithm = make(name)
    assert "policy" in algorithm.needs.streams
    penalised = getattr(algorithm.config, "kl_coefficient", 0.0) > 0
    assert penalised == algorithm.needs.ref_logprobs
    in_reward = penalised and algorithm.config.kl_in_reward
    assert algorithm.needs.old_logprobs >= in_reward
