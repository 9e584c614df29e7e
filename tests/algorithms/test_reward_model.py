"""The reward model's losses, where it reads its scores, and what it leaves out."""

import math

import numpy as np
import pytest
import torch

from posttrain.algorithms.reward_model import Config, RewardModel
from posttrain.batches.build import build_samples, weigh
from posttrain.config import validate
from posttrain.errors import ConfigError
from posttrain.models.rows import token_batch
from posttrain.types import Microbatch
from tests.algorithms.examples import group, rollout
from tests.golden.fixtures import f64


def model(**settings):
    return RewardModel(Config(**settings))


def read(algorithm, groups):
    """The rows as they train, weighed over the step."""
    samples = algorithm.refine(build_samples(groups, algorithm.advantages(groups)))
    return weigh(samples, algorithm.needs.streams)


def batch(algorithm, groups):
    rows = [row for row in read(algorithm, groups) if row.loss_mask.any()]
    nothing = np.zeros(0, np.int64)
    laid = Microbatch(
        samples=tuple(rows),
        layout="padded",
        ids=nothing,
        positions=nothing,
        blocks=(),
        sources=nothing,
        targets=nothing,
    )
    return token_batch(laid, dtype=torch.float64, device="cpu")


def loss(groups, scores, **settings):
    algorithm = model(**settings)
    values = f64(scores).requires_grad_()
    found = algorithm.loss(batch(algorithm, groups), torch.zeros(len(scores)), None, values)
    return found, values


GOLDEN = [group([1.0, 0.0], position) for position in range(3)]
SCORES = [1.2, 0.2, 0.3, 0.6, -0.5, -0.9]


def test_pairs_give_the_golden_loss():
    found, _ = loss(GOLDEN, SCORES)
    assert pytest.approx(0.5602107281, abs=1e-9) == float(found.total.detach())


def test_margins_are_per_unit_of_reward():
    groups = [group([gap, 0.0], place) for place, gap in enumerate((1.0, 1.5, 2.0))]
    expected = -torch.nn.functional.logsigmoid(f64([1.0 - 0.5, -0.3 - 0.75, 0.4 - 1.0])).mean()
    assert pytest.approx(float(expected), abs=1e-12) == float(loss(groups, SCORES, margin=0.5)[0].total.detach())


def test_centring_gives_the_golden_loss():
    found, _ = loss(GOLDEN, SCORES, centring=0.01)
    assert pytest.approx(0.5759773948, abs=1e-9) == float(found.total.detach())


def test_several_answers_are_one_example():
    found, _ = loss([group([3.0, 2.0, 1.0, 0.0])], [0.8, 0.2, 0.1, -0.5])
    gaps = f64([0.6, 0.7, 1.3, 0.1, 0.7, 0.6])
    assert pytest.approx(float(-torch.nn.functional.logsigmoid(gaps).mean()), abs=1e-12) == float(found.total.detach())


def test_a_ranking_gives_the_golden_plackett_luce():
    found, _ = loss([group([3.0, 2.0, 0.0, 1.0])], [0.8, 0.2, -0.5, 0.1], loss="plackett_luce")
    assert pytest.approx(2.1542233123, abs=1e-9) == float(found.total.detach())


def test_two_answers_make_both_losses_the_same():
    one, other = loss(GOLDEN, SCORES)[0], loss(GOLDEN, SCORES, loss="plackett_luce")[0]
    assert pytest.approx(float(one.total.detach()), abs=1e-12) == float(other.total.detach())


def test_equal_rewards_are_not_compared():
    found, values = loss([group([1.0, 1.0])], [0.3, 0.9])
    found.total.backward()
    assert (0.0, [0.0, 0.0]) == (float(found.total.detach()), values.grad.tolist())


def test_groups_without_a_comparison_do_not_count():
    alone, _ = loss(GOLDEN[:1], SCORES[:2])
    both, _ = loss([*GOLDEN[:1], group([1.0, 1.0], 7)], [*SCORES[:2], 0.3, 0.4])
    assert pytest.approx(float(alone.total.detach()), abs=1e-12) == float(both.total.detach())


def test_gradient_pushes_answers_apart():
    found, values = loss(GOLDEN[:1], [0.2, 0.2])
    found.total.backward()
    assert [-0.5, 0.5] == values.grad.tolist()


def test_the_loss_adds_up_over_microbatches():
    algorithm = model()
    whole = batch(algorithm, GOLDEN)
    parts = []
    for place in range(3):
        one = batch(algorithm, GOLDEN[place : place + 1])
        one = type(one)(**{name: getattr(one, name) for name in one.__slots__} | {"totals": whole.totals})
        parts.append(algorithm.loss(one, torch.zeros(2), None, f64(SCORES[2 * place : 2 * place + 2])).total)
    assert pytest.approx(0.5602107281, abs=1e-9) == float(sum(parts))


def test_every_answer_is_read_at_its_last_sampled_token():
    rows = read(model(), [group([1.0, 0.0])])
    assert [[3], [3]] == [np.flatnonzero(row.loss_mask).tolist() for row in rows]
    assert {4} == {len(row) for row in rows}


def test_what_the_environment_wrote_last_is_not_read():
    one = rollout(0, 1.0, tokens=4)
    segment = one.segments[0]
    masked = type(segment)(
        **{name: getattr(segment, name) for name in segment.__slots__}
        | {"loss_mask": (False, True, True, False, False)}
    )
    changed = type(one)(**{name: getattr(one, name) for name in one.__slots__} | {"segments": (masked,)})
    both = group([1.0, 0.0])
    both = type(both)(position=0, task=both.task, rollouts=(changed, both.rollouts[1]))
    assert [3] == np.flatnonzero(read(model(), [both])[0].loss_mask).tolist()


def test_accuracy_and_margin_are_reported():
    stats = loss(GOLDEN, SCORES)[0].stats
    assert (pytest.approx(2 / 3), pytest.approx((1.0 - 0.3 + 0.4) / 3)) == (
        stats["accuracy"].result,
        stats["margin/mean"].result,
    )


def test_a_tie_counts_one_half():
    stats = loss(GOLDEN[:1], [0.4, 0.4])[0].stats
    assert (0.5, 1.0) == (stats["accuracy"].result, stats["tie_share"].result)


def test_scores_far_apart_stay_finite():
    found, values = loss(GOLDEN[:1], [-1e4, 1e4])
    found.total.backward()
    assert math.isfinite(float(found.total.detach()))
    assert [-1.0, 1.0] == values.grad.tolist()


@pytest.mark.parametrize("extra", [{"margin": 1.0}, {"centring": 0.1}])
def test_pair_options_are_refused_for_rankings(extra):
    with pytest.raises(ConfigError, match="belong to pairs"):
        validate(Config, {"loss": "plackett_luce", **extra}, where="test")


def test_it_trains_scores_and_no_policy():
    needs = model().needs
    assert (False, True, True, True) == (needs.engine, needs.values, needs.scores, needs.whole_groups)
