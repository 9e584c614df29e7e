"""KTO and BCO on single answers: golden values, the reference point of the whole batch, and state."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from posttrain.algorithms.bco import BCO
from posttrain.algorithms.bco import Config as BCOConfig
from posttrain.algorithms.kto import KTO, Config
from posttrain.config import validate
from posttrain.errors import ConfigError
from posttrain.functional.preference_unpaired import bco
from posttrain.types import Sample, TokenBatch
from tests.algorithms.examples import group
from tests.algorithms.preferences import value
from tests.golden.fixtures_preference import KTO_DESIRABLE, KTO_LOG_RATIOS, KTO_MISMATCHED, golden

FACTS = golden("pref")
GOOD = KTO_DESIRABLE.double().tolist()


def row(group: int, ids, *, prompt=2, reward=1.0, log_ratio=0.0) -> Sample:
    """A row whose tokens after the prompt train."""
    mask = np.arange(len(ids)) >= prompt
    first = np.arange(len(ids)) == prompt
    return Sample(
        ids=np.array(ids),
        loss_mask=mask,
        prompt_length=prompt,
        group=group,
        rollout=0,
        reward=reward,
        advantages=np.where(mask, 1.0, np.nan),
        rollout_logprobs=np.full(len(ids), np.nan),
        versions=np.full(len(ids), -1),
        turns=np.full(len(ids), -1),
        old_logprobs=np.where(first, log_ratio - 1.0, -1.0),
        ref_logprobs=np.full(len(ids), -1.0),
    )


def answers(places=(0, 1, 2, 3)) -> TokenBatch:
    """The golden answers of one token each, with zero reference."""
    count = len(places)
    return TokenBatch(
        samples=torch.arange(count),
        sample_count=count,
        advantages=torch.ones(count, dtype=torch.float64),
        token_weight={},
        ref_logprobs=torch.zeros(count, dtype=torch.float64),
        groups=torch.tensor(places),
        rollouts=torch.zeros(count, dtype=torch.long),
        rewards=torch.tensor([GOOD[place] for place in places], dtype=torch.float64),
        totals={"rollouts": 4.0},
    )


def evaluate(algorithm, places=(0, 1, 2, 3)):
    leaf = KTO_LOG_RATIOS[list(places)].clone().requires_grad_()
    return algorithm.loss(answers(places), leaf, None, None), leaf


def with_baseline(**options) -> KTO:
    """KTO after a batch whose mismatched rows are the golden ones."""
    algorithm = KTO(Config(**options))
    lone = [row(g, [1, 4, 5], reward=math.nan, log_ratio=float(r)) for g, r in enumerate(KTO_MISMATCHED)]
    algorithm.refine(lone)
    return algorithm


@pytest.mark.parametrize(
    ("key", "options"), [("kto.mean.w1/1", {}), ("kto.mean.wD1.33/wU1", {"desirable_weight": 1.33})]
)
def test_kto_is_the_golden_one(key, options):
    assert FACTS[key] == pytest.approx(value(evaluate(with_baseline(**options))[0]), abs=1e-9)


def test_the_reference_point_is_the_golden_one():
    expected = FACTS["kto.z0(mean logratio of mismatched pairs, clamped at 0)"]
    assert expected == pytest.approx(with_baseline().numbers()["kl_ref/mismatched"], abs=1e-9)


def test_the_reference_point_is_never_below_zero():
    algorithm = KTO(Config())
    algorithm.refine([row(0, [1, 4, 5], reward=math.nan, log_ratio=-0.4)])
    assert 0.0 == algorithm.numbers()["kl_ref/mismatched"]


@pytest.mark.parametrize("build", [with_baseline, lambda: BCO(BCOConfig())])
@pytest.mark.parametrize("split", [((0, 1), (2, 3)), ((3,), (1, 0), (2,))])
def test_split_and_order_change_neither_loss_nor_gradient(build, split):
    algorithm = build()
    whole, leaf = evaluate(algorithm)
    expected = torch.autograd.grad(whole.total, leaf)[0].tolist()
    parts = [evaluate(algorithm, places) for places in split]
    slopes = [torch.autograd.grad(loss.total, own)[0].tolist() for loss, own in parts]
    order = [place for places in split for place in places]
    found = dict(zip(order, [slope for part in slopes for slope in part], strict=True))
    assert value(whole) == pytest.approx(sum(value(loss) for loss, _ in parts))
    assert expected == pytest.approx([found[place] for place in range(4)])


def test_each_prompt_is_shown_the_answer_before_it():
    rows = [row(0, [1, 2, 7, 8]), row(1, [3, 4, 9]), row(2, [5, 6, 10, 11])]
    added = KTO(Config()).extend(rows)[3:]
    assert [[1, 2, 10, 11], [3, 4, 7, 8], [5, 6, 9]] == [sample.ids.tolist() for sample in added]
    assert all(np.isnan(sample.reward) for sample in added)
    assert [[False, False, True, True]] * 2 == [sample.loss_mask.tolist() for sample in added[:2]]


def test_answers_to_the_same_prompt_are_not_mismatched():
    rows = [row(0, [1, 2, 7]), replace(row(0, [1, 2, 8], reward=0.0), rollout=1), row(1, [3, 4, 9])]
    added = KTO(Config()).extend(rows)[3:]
    assert [[1, 2, 9], [1, 2, 9], [3, 4, 8]] == [sample.ids.tolist() for sample in added]


def test_a_mismatched_row_is_no_longer_than_the_longest():
    rows = [row(0, [1, 2, 2, 2, 7], prompt=4), row(1, [3, 9, 9, 9, 9], prompt=1)]
    assert 5 == max(len(sample) for sample in KTO(Config()).extend(rows))


def test_mismatched_rows_do_not_train():
    rows = [row(0, [1, 2, 7, 8]), row(1, [3, 4, 9])]
    algorithm = KTO(Config())
    extended = [
        replace(s, old_logprobs=-np.ones(len(s)), ref_logprobs=-np.ones(len(s))) for s in algorithm.extend(rows)
    ]
    assert [0, 1] == [sample.group for sample in algorithm.refine(extended)]


def test_one_prompt_alone_is_refused():
    with pytest.raises(ValueError, match="two prompts"):
        KTO(Config()).extend([row(0, [1, 2, 7])])


def test_kto_starts_at_a_half():
    algorithm = KTO(Config())
    assert (0.5, None) == (algorithm.start, KTO(Config(desirable_weight=1.2)).start)


def test_bco_is_the_function_at_its_running_shift():
    algorithm = BCO(BCOConfig())
    rows = [row(g, [1, 4, 5], reward=GOOD[g], log_ratio=float(r)) for g, r in enumerate(KTO_LOG_RATIOS)]
    algorithm.refine(rows)
    rewards = 0.1 * KTO_LOG_RATIOS
    shift = 0.5 * float(rewards[KTO_DESIRABLE].mean() + rewards[~KTO_DESIRABLE].mean())
    expected = float(bco(KTO_LOG_RATIOS, KTO_DESIRABLE, shift=shift).mean())
    assert shift == pytest.approx(algorithm.numbers()["rewards/shift"])
    assert expected == pytest.approx(value(evaluate(algorithm)[0]))


def test_bco_without_its_shift_is_the_plain_classifier():
    algorithm = BCO(BCOConfig(shift=False))
    algorithm.refine([row(0, [1, 4, 5])])
    assert (0.0, False) == (algorithm.numbers()["rewards/shift"], algorithm.needs.old_logprobs)


def test_the_running_means_survive_a_checkpoint():
    one, other = BCO(BCOConfig()), BCO(BCOConfig())
    one.refine([row(0, [1, 4, 5], log_ratio=0.3), row(1, [1, 4, 5], reward=0.0, log_ratio=-0.1)])
    other.restore(json.loads(json.dumps(one.state())))
    assert one.state() == other.state()
    assert one.numbers() == other.numbers()


def test_computing_a_loss_changes_no_state():
    algorithm = BCO(BCOConfig())
    before = algorithm.state()
    evaluate(algorithm)
    assert before == algorithm.state()


@pytest.mark.parametrize("algorithm", [KTO(Config()), BCO(BCOConfig())])
def test_every_answer_takes_part(algorithm):
    assert [1.0, -1.0, 1.0] == [float(a) for a in algorithm.advantages([group([1.0, 0.0, 1.0])])[0]]
    assert algorithm.keep(group([1.0]))


def test_accuracy_is_measured_at_the_reference_point():
    stats = evaluate(with_baseline())[0].stats
    above = KTO_LOG_RATIOS > FACTS["kto.z0(mean logratio of mismatched pairs, clamped at 0)"]
    assert float((above == KTO_DESIRABLE).double().mean()) == pytest.approx(stats["accuracy"].result)


def test_weights_of_zero_are_refused():
    with pytest.raises(ConfigError, match="desirable_weight"):
        validate(Config, {"desirable_weight": 0.0}, where="test")
