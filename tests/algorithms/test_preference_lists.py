"""Several negatives and whole rankings: golden values, reductions to DPO, ties and order."""

import math
from dataclasses import replace

import pytest
import torch

from posttrain.algorithms.dpo import DPO
from posttrain.algorithms.dpo import Config as DPOConfig
from posttrain.algorithms.plackett_luce import Config as PLConfig
from posttrain.algorithms.plackett_luce import PlackettLuce
from posttrain.algorithms.s_dpo import SDPO, Config
from posttrain.types import TokenBatch
from tests.algorithms.preferences import ROWS, evaluate, row_gradients, value
from tests.golden.fixtures_preference import REWARDS, golden

FACTS = golden("pref")
LISTS = (SDPO(Config(beta=1.0)), PlackettLuce(PLConfig(beta=1.0)))


def one_list(rewards, log_ratios=REWARDS, *, groups=None, totals=None) -> TokenBatch:
    """One token per answer, with zero reference, so that beta 1 makes log-probabilities the scores."""
    count = len(log_ratios)
    return TokenBatch(
        samples=torch.arange(count),
        sample_count=count,
        advantages=torch.ones(count, dtype=torch.float64),
        token_weight={},
        ref_logprobs=torch.zeros(count, dtype=torch.float64),
        groups=torch.zeros(count, dtype=torch.long) if groups is None else torch.tensor(groups),
        rollouts=torch.arange(count),
        rewards=torch.tensor(rewards, dtype=torch.float64),
        totals=totals or {},
    )


def loss_and_slope(algorithm, rewards, log_ratios=REWARDS, **options):
    leaf = log_ratios.clone().requires_grad_()
    loss = algorithm.loss(one_list(rewards, log_ratios, **options), leaf, None, None)
    return value(loss), torch.autograd.grad(loss.total, leaf)[0].tolist()


def test_several_negatives_are_the_golden_softmax():
    loss, slope = loss_and_slope(SDPO(Config(beta=1.0)), [1.0, 0.0, 0.0, 0.0])
    assert FACTS["sdpo.softmax_negatives"] == pytest.approx(loss, abs=1e-9)
    assert FACTS["softmax.grad_wrt_rewards[0..3]"] == pytest.approx(slope, abs=1e-9)


def test_pairwise_negatives_are_the_golden_mean():
    loss, _ = loss_and_slope(SDPO(Config(beta=1.0, negatives="pairwise")), [1.0, 0.0, 0.0, 0.0])
    assert FACTS["multi_pair_mean(1 winner vs each loser)"] == pytest.approx(loss, abs=1e-9)


def test_a_ranking_is_the_golden_plackett_luce():
    loss, slope = loss_and_slope(PlackettLuce(PLConfig(beta=1.0)), [3.0, 2.0, 0.0, 1.0])
    assert FACTS["plackett_luce.order0132"] == pytest.approx(loss, abs=1e-9)
    assert FACTS["pl.grad_wrt_rewards(in order)"] == pytest.approx([slope[i] for i in (0, 1, 3, 2)], abs=1e-9)


def test_only_the_order_of_the_rewards_counts():
    plackett_luce = PlackettLuce(PLConfig(beta=1.0))
    assert loss_and_slope(plackett_luce, [3, 2, 0, 1]) == loss_and_slope(plackett_luce, [0.9, 0.5, -7.0, 0.0])


def test_one_best_with_tied_losers_is_the_softmax():
    rewards = [1.0, 0.0, 0.0, 0.0]
    (loss, slope), (other, other_slope) = (loss_and_slope(algorithm, rewards) for algorithm in LISTS)
    assert [loss, *slope] == pytest.approx([other, *other_slope])


def test_equal_scores_give_the_logarithm_of_the_orders():
    zeros = torch.zeros(4, dtype=torch.float64)
    assert FACTS["pl_all_equal_K4"] == pytest.approx(loss_and_slope(LISTS[1], [3, 2, 1, 0], zeros)[0])
    assert FACTS["softmax_all_equal_K4"] == pytest.approx(loss_and_slope(LISTS[0], [1, 0, 0, 0], zeros)[0])


@pytest.mark.parametrize("algorithm", [SDPO(Config()), SDPO(Config(negatives="pairwise")), PlackettLuce(PLConfig())])
def test_two_answers_are_dpo(algorithm):
    dpo = DPO(DPOConfig())
    assert value(evaluate(dpo)) == pytest.approx(value(evaluate(algorithm)), abs=1e-12)
    for row, expected in row_gradients(dpo).items():
        assert expected == pytest.approx(row_gradients(algorithm)[row], abs=1e-12)


@pytest.mark.parametrize("algorithm", LISTS)
def test_all_equal_rewards_move_nothing(algorithm):
    assert (0.0, [0.0] * 4) == loss_and_slope(algorithm, [0.5] * 4)


@pytest.mark.parametrize("algorithm", LISTS)
def test_lists_of_different_length_are_averaged_as_lists(algorithm):
    scores = torch.tensor([0.3, -0.2, 0.8, 0.1, 0.4], dtype=torch.float64)
    both, _ = loss_and_slope(algorithm, [1, 0, 2, 1, 0], scores, groups=[7, 7, 3, 3, 3])
    one, _ = loss_and_slope(algorithm, [1, 0], scores[:2])
    other, _ = loss_and_slope(algorithm, [2, 1, 0], scores[2:])
    assert (one + other) / 2 == pytest.approx(both)


@pytest.mark.parametrize("algorithm", LISTS)
@pytest.mark.parametrize("split", [(ROWS[:2], ROWS[2:]), (ROWS[4:], ROWS[:4]), (tuple(reversed(ROWS)),)])
def test_split_and_row_order_change_neither_loss_nor_gradient(algorithm, split):
    whole, parts = row_gradients(algorithm), [row_gradients(algorithm, rows) for rows in split]
    assert value(evaluate(algorithm)) == pytest.approx(sum(value(evaluate(algorithm, rows)) for rows in split))
    for row, expected in whole.items():
        assert expected == pytest.approx(next(part[row] for part in parts if row in part), abs=1e-12)


@pytest.mark.parametrize("algorithm", LISTS)
def test_extreme_scores_stay_finite(algorithm):
    scores = torch.tensor([-900.0, 900.0, 0.0], dtype=torch.float64)
    loss, slope = loss_and_slope(algorithm, [2.0, 1.0, 0.0], scores)
    assert math.isfinite(loss)
    assert all(map(math.isfinite, slope))


def test_plackett_luce_orders_the_losers_and_the_softmax_does_not():
    scores = torch.zeros(3, dtype=torch.float64)
    _, ordered = loss_and_slope(LISTS[1], [2.0, 1.0, 0.0], scores)
    _, pushed = loss_and_slope(LISTS[0], [2.0, 1.0, 0.0], scores)
    assert ordered[1] < ordered[2]
    assert pushed[1] == pytest.approx(pushed[2])


def test_an_answer_without_a_reward_is_in_no_order():
    known, _ = loss_and_slope(LISTS[1], [1.0, 0.0], REWARDS[:2])
    batch = one_list([1.0, 0.0, math.nan], REWARDS[:3], totals={})
    loss = LISTS[1].loss(replace(batch), REWARDS[:3].clone().requires_grad_(), None, None)
    assert known == pytest.approx(value(loss))
