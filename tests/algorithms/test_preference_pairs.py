"""DPO and its relatives through the real class: golden values, invariances, options and what is refused."""

import math
from dataclasses import replace

import pytest
import torch

from posttrain.algorithms.cpo import CPO
from posttrain.algorithms.cpo import Config as CPOConfig
from posttrain.algorithms.dpo import DPO, Config
from posttrain.algorithms.orpo import ORPO
from posttrain.algorithms.orpo import Config as ORPOConfig
from posttrain.algorithms.simpo import Config as SimPOConfig
from posttrain.algorithms.simpo import SimPO
from posttrain.config import validate
from posttrain.errors import ConfigError
from posttrain.types import merge_stats
from tests.algorithms.examples import group
from tests.algorithms.preferences import ROWS, evaluate, fact, pair_batch, policy, row_gradients, value
from tests.golden.fixtures_preference import golden

FACTS = golden("pref")
REVERSED = tuple(reversed(ROWS))
SPLITS = [(ROWS[:2], ROWS[2:]), (ROWS[6:], ROWS[:2], ROWS[2:6]), (REVERSED,)]


def build(**options) -> DPO:
    return DPO(Config(**options))


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("dpo.sigmoid.mean", {}),
        ("cdpo.eps0.1.mean", {"loss": "cdpo"}),
        ("robust.eps0.1.mean", {"loss": "robust"}),
        ("hinge.mean", {"loss": "hinge"}),
        ("ipo.sum.tau0.1.mean", {"loss": "ipo_sum"}),
        ("ipo.length_avg.tau0.1.mean", {"loss": "ipo_average"}),
        ("dpo.sigmoid_norm.beta2.mean", {"loss": "length_normalised", "beta": 2.0}),
        ("nca_pair.mean", {"loss": "nca"}),
        ("bco_pair.mean(no shift)", {"loss": "bco_pair"}),
        ("sppo_hard.mean", {"loss": "sppo"}),
        ("apo_zero.mean", {"loss": "apo_zero"}),
        ("apo_down.mean", {"loss": "apo_down"}),
        ("exo_pair.eps0.001.mean", {"loss": "exo"}),
        ("dpo_nll.alpha0.2.seq_sum", {"nll_coefficient": 0.2, "nll_normaliser": "sequence_sum"}),
        ("dpo_nll.alpha0.2.per_seq_token_mean(IterativeRPO)", {"nll_coefficient": 0.2}),
        (
            "dpo_nll.alpha0.2.batch_token_mean(TRL sft)",
            {"nll_coefficient": 0.2, "nll_normaliser": "batch_token_mean"},
        ),
    ],
)
def test_the_loss_is_the_golden_one(key, options):
    assert FACTS[key] == pytest.approx(value(evaluate(build(**options))), abs=1e-9)


def test_dpop_is_the_golden_one():
    expected = sum(FACTS["dpop.lam5.per_pair"]) / 4
    assert expected == pytest.approx(value(evaluate(build(penalty=5.0))), abs=1e-9)


@pytest.mark.parametrize(
    ("algorithm", "key"),
    [
        (SimPO(SimPOConfig()), "simpo.mean"),
        (CPO(CPOConfig()), "cpo.beta0.1.alpha1.mean(batch token mean NLL)"),
        (ORPO(ORPOConfig()), "orpo.lambda0.1.loss(per-seq avg NLL, mean)"),
    ],
)
def test_losses_without_a_reference_are_the_golden_ones(algorithm, key):
    assert FACTS[key] == pytest.approx(value(evaluate(algorithm, reference=None)), abs=1e-9)


def test_the_gradient_is_the_closed_form_on_every_token():
    slopes = [slope / 4 for slope in FACTS["dpo.dL_dpi_c(per pair, before /B)"]]
    expected = {row: [slopes[row[0]] * (1 - 2 * row[1])] * int(fact("len", row)) for row in ROWS}
    assert expected == {row: pytest.approx(found, abs=1e-12) for row, found in row_gradients(build()).items()}


def test_the_first_step_is_ln_2_without_a_winner():
    loss = evaluate(build(), reference="pi")
    assert pytest.approx(math.log(2)) == value(loss)
    assert (0.0, 1.0) == (loss.stats["accuracy"].result, loss.stats["tie_share"].result)


@pytest.mark.parametrize(("loss", "expected"), [("sigmoid", math.log(2)), ("hinge", 1.0), ("apo_zero", 1.0)])
def test_each_loss_knows_where_it_starts(loss, expected):
    algorithm = build(loss=loss)
    assert expected == pytest.approx(algorithm.start)
    assert algorithm.start == pytest.approx(value(evaluate(algorithm, reference="pi")))


def test_a_weighted_loss_has_no_known_start():
    assert build(weighting="wpo").start is None


ALGORITHMS = [
    build(),
    build(loss="ipo_average", nll_coefficient=0.5, nll_normaliser="batch_token_mean"),
    build(loss="nca", length_alpha=0.5),
    build(penalty=5.0),
    build(divergence="jensen_shannon"),
    SimPO(SimPOConfig(nll_coefficient=0.3)),
    CPO(CPOConfig()),
    ORPO(ORPOConfig()),
]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("split", SPLITS)
def test_split_and_row_order_change_neither_loss_nor_gradient(algorithm, split):
    whole = row_gradients(algorithm)
    parts = [row_gradients(algorithm, rows) for rows in split]
    assert value(evaluate(algorithm)) == pytest.approx(sum(value(evaluate(algorithm, rows)) for rows in split))
    for row, expected in whole.items():
        assert expected == pytest.approx(next(part[row] for part in parts if row in part), abs=1e-12)


def test_stats_of_microbatches_merge_to_those_of_the_whole():
    whole = {name: stat.result for name, stat in evaluate(build()).stats.items()}
    merged = merge_stats([evaluate(build(), rows).stats for rows in SPLITS[0]])
    assert whole == pytest.approx({name: stat.result for name, stat in merged.items()})


def test_what_is_watched():
    stats = {name: stat.result for name, stat in evaluate(build()).stats.items()}
    gaps = FACTS["gap"]
    expected = {
        "accuracy": FACTS["dpo.accuracy(strict >)"],
        "margin/mean": 0.1 * sum(gaps) / 4,
        "logprobs/chosen": sum(fact("pi", (pair, 0)) for pair in range(4)) / 4,
        "logprobs/rejected": sum(fact("pi", (pair, 1)) for pair in range(4)) / 4,
        "token_gap/mean": sum(fact("len", (p, 0)) - fact("len", (p, 1)) for p in range(4)) / 4,
        "tie_share": 0.0,
    }
    assert expected == pytest.approx({name: stats[name] for name in expected})
    assert stats["rewards/chosen"] - stats["rewards/rejected"] == pytest.approx(stats["margin/mean"])


def test_one_chosen_with_two_rejected_is_two_pairs():
    rows = ((0, 0), (0, 1), (1, 1))
    batch = pair_batch(rows, totals={})
    batch.groups[2] = 0
    batch.rollouts[2] = 2
    loss = build().loss(batch, policy(rows), None, None)
    first = fact("pi", (0, 0)) - fact("ref", (0, 0))
    gaps = [first - (fact("pi", row) - fact("ref", row)) for row in rows[1:]]
    expected = sum(-torch.nn.functional.logsigmoid(torch.tensor(0.1 * gap)).item() for gap in gaps) / 2
    assert expected == pytest.approx(value(loss), abs=1e-6)


def test_segments_of_one_answer_count_together():
    rows = ((0, 0), (0, 1), (1, 1))
    batch = pair_batch(rows, totals={})
    batch.groups[2] = 0
    loss = build().loss(batch, policy(rows), None, None)
    gap = fact("pi", rows[0]) - fact("ref", rows[0]) - sum(fact("pi", r) - fact("ref", r) for r in rows[1:])
    assert -torch.nn.functional.logsigmoid(torch.tensor(0.1 * gap)).item() == pytest.approx(value(loss), abs=1e-6)


def test_equal_rewards_move_nothing():
    rewards = dict.fromkeys(ROWS, 0.7)
    gradients = row_gradients(build(nll_coefficient=1.0), rewards=rewards)
    assert {0.0} == {slope for slopes in gradients.values() for slope in slopes}


@pytest.mark.parametrize("rewards", [[0.5, 0.5], [1.0, 1.0, 1.0], [0.3]])
def test_a_group_of_equal_rewards_takes_no_part(rewards):
    assert [0.0] * len(rewards) == [float(a) for a in build().advantages([group(rewards)])[0]]


def test_online_the_best_compares_with_the_worst():
    online = build(online=True)
    assert [-1.0, 0.0, 1.0, 0.0] == [float(a) for a in online.advantages([group([0.1, 0.4, 0.9, 0.9])])[0]]
    assert online.needs.engine


def test_online_the_middle_is_left_out():
    rows = ((0, 0), (0, 1), (1, 1))
    batch = pair_batch(rows, totals={}, rewards={(0, 0): 0.9, (0, 1): 0.5, (1, 1): 0.1})
    batch.groups[2] = 0
    batch.rollouts[2] = 2
    loss = build(online=True).loss(batch, policy(rows), None, None)
    assert 1.0 == loss.stats["margin/mean"].count


def test_wpo_weighs_by_the_policy_itself():
    algorithm = build(weighting="wpo")
    batch = pair_batch()
    collision = torch.full_like(batch.ref_logprobs, -0.5)
    found = algorithm.loss(replace(batch, log_collision=collision), policy(), None, None)
    weights = [
        min(1.0, math.exp(sum(fact("pi", (p, s)) / fact("len", (p, s)) + 0.5 for s in (0, 1)))) for p in range(4)
    ]
    expected = sum(w * loss for w, loss in zip(weights, FACTS["dpo.sigmoid.per_pair"], strict=True)) / 4
    assert expected == pytest.approx(value(found), abs=1e-9)
    assert algorithm.needs.collision


def test_length_alpha_takes_the_longer_answers_tail_down():
    assert value(evaluate(build())) != pytest.approx(value(evaluate(build(length_alpha=0.0))))


def test_without_a_reference_the_reference_is_uniform():
    free, cpo = build(reference_free=True), CPO(CPOConfig(nll_coefficient=0.0))
    assert value(evaluate(cpo, reference=None)) == pytest.approx(value(evaluate(free, reference=None)))
    assert not free.needs.ref_logprobs


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reference_free": True, "loss": "ipo_sum"}, "reference_free has no meaning"),
        ({"reference_free": True, "loss": "nca"}, "reference_free has no meaning"),
        ({"reference_free": True, "penalty": 5.0}, "reference_free has no meaning"),
        ({"reference_free": True, "divergence": "forward_kl"}, "reference_free has no meaning"),
        ({"divergence": "forward_kl", "loss": "hinge"}, "f-DPO"),
        ({"penalty": 5.0, "loss": "robust"}, "DPOP"),
        ({"penalty": 5.0, "divergence": "alpha"}, "one of the two"),
        ({"flip": 0.5}, "less than 0.5"),
        ({"beta": 0.0}, "greater than 0"),
        ({"loss": "sigmod"}, "sigmoid"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        validate(Config, options, where="test")


def test_a_missing_reference_is_an_error():
    with pytest.raises(ValueError, match="ref_logprobs"):
        evaluate(build(), reference=None)


def test_a_batch_without_pairs_is_zero_with_a_live_graph():
    gradients = row_gradients(build(), ((0, 0), (1, 1)))
    assert {0.0} == {slope for slopes in gradients.values() for slope in slopes}
