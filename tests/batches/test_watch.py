"""The watched numbers of one microbatch, by hand."""

import math

import pytest
import torch

from posttrain.batches.watch import watch, watched
from posttrain.types import Loss, Stat, TokenBatch

LOGPROBS = torch.tensor([-1.0, -2.0], dtype=torch.float64)


def batch(**fields):
    usual = {
        "samples": torch.tensor([0, 0]),
        "sample_count": 1,
        "advantages": torch.ones(2),
        "token_weight": {"policy": torch.ones(2)},
    }
    return TokenBatch(**usual | fields)


def numbers(logprobs=LOGPROBS, entropy=None, **fields):
    return {name: stat.result for name, stat in watch(batch(**fields), logprobs, entropy).items()}


def test_trained_tokens_are_always_counted():
    assert {"tokens/trained": 2.0} == numbers()


def test_entropy():
    assert 1.5 == numbers(entropy=torch.tensor([1.0, 2.0]))["entropy"]


def test_the_ratio_is_to_the_old_log_probabilities():
    found = numbers(old_logprobs=LOGPROBS - math.log(3.0) * torch.tensor([1.0, 0.0]))
    assert (pytest.approx(2.0), pytest.approx(3.0)) == (found["ratio/mean"], found["ratio/max"])


def test_without_old_log_probabilities_there_is_no_ratio():
    assert not [name for name in numbers(rollout_logprobs=LOGPROBS) if name.startswith("ratio")]


def test_the_gap_is_between_engine_and_current_learner():
    found = numbers(rollout_logprobs=LOGPROBS + torch.tensor([0.5, -0.1]))
    assert (pytest.approx(0.3), pytest.approx(0.5)) == (found["logprob_gap/mean"], found["logprob_gap/max"])


def test_the_gap_is_to_the_old_learner_where_there_is_one():
    found = numbers(rollout_logprobs=LOGPROBS, old_logprobs=LOGPROBS - 2.0)
    assert 2.0 == found["logprob_gap/mean"]


def test_unknown_engine_log_probabilities_are_left_out():
    found = numbers(rollout_logprobs=torch.tensor([math.nan, -2.5], dtype=torch.float64))
    assert (0.5, 0.5) == (found["logprob_gap/mean"], found["logprob_gap/max"])


def test_kl_to_the_reference_by_both_estimators():
    found = numbers(ref_logprobs=LOGPROBS - torch.tensor([0.2, 0.0], dtype=torch.float64))
    expected = (0.2 / 2, (math.exp(-0.2) - 1 + 0.2) / 2)
    assert pytest.approx(expected, abs=1e-12) == (found["kl_ref/k1"], found["kl_ref/k3"])


def test_a_microbatch_without_tokens_is_only_counted():
    assert {"tokens/trained": 0.0} == numbers(torch.zeros(0), torch.zeros(0), old_logprobs=torch.zeros(0))


def test_the_loss_passes_through():
    total = torch.tensor(7.0, requires_grad=True)
    found = watched(lambda *_: Loss(total=total))(batch(), LOGPROBS, None, None)
    assert total is found.total


def test_the_losses_own_numbers_win():
    own = Loss(total=torch.tensor(0.0), stats={"tokens/trained": Stat(kind="sum", value=9.0)})
    assert 9.0 == watched(lambda *_: own)(batch(), LOGPROBS, None, None).stats["tokens/trained"].value


def test_watching_keeps_no_graph():
    logprobs = LOGPROBS.clone().requires_grad_()
    found = watched(lambda *_: Loss(total=logprobs.sum()))(batch(old_logprobs=LOGPROBS), logprobs, None, None)
    found.total.backward()
    assert [1.0, 1.0] == logprobs.grad.tolist()
