"""beta-DPO: the golden trace through the real class, one beta and one draw per batch, state only from training."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from posttrain.algorithms.beta_dpo import BetaDPO, Config
from posttrain.algorithms.dpo import DPO
from posttrain.algorithms.dpo import Config as DPOConfig
from posttrain.types import Sample
from tests.algorithms.preferences import evaluate, row_gradients, value
from tests.golden.fixtures_preference import GAPS, golden

TRACE = golden("pref")["beta_dpo.trace"]


def answer(group: int, rollout: int, log_ratio: float) -> Sample:
    """A row of two trained tokens with this log ratio; rollout 0 is the chosen one."""
    mask = np.array([False, True, True])
    return Sample(
        ids=np.array([1, 5, 2]),
        loss_mask=mask,
        prompt_length=1,
        group=group,
        rollout=rollout,
        reward=1.0 - rollout,
        advantages=np.where(mask, 1.0, np.nan),
        rollout_logprobs=np.full(3, np.nan),
        versions=np.full(3, -1),
        turns=np.full(3, -1),
        old_logprobs=np.array([np.nan, log_ratio - 1.0, -1.0]),
        ref_logprobs=np.array([np.nan, -1.0, -1.0]),
    )


def batch(gaps) -> list[Sample]:
    """Pairs with these gaps."""
    return [answer(g, side, gap * (1 - side)) for g, gap in enumerate(map(float, gaps)) for side in (0, 1)]


def build(**options) -> BetaDPO:
    return BetaDPO(Config(**options))


def kept(samples) -> list[int]:
    return sorted({sample.group for sample in samples if sample.loss_mask.any()})


def test_beta_follows_the_golden_trace():
    algorithm = build(drop_share=0.0)
    for gaps, expected in zip(GAPS, TRACE, strict=True):
        algorithm.refine(batch(gaps))
        assert expected["beta_debiased(all kept)"] == pytest.approx(algorithm.numbers()["beta"], abs=1e-9)


def test_one_pair_in_five_is_left_out():
    samples = build().refine(batch(np.linspace(-1, 1, 10)))
    assert 8 == len(kept(samples))
    assert 20 == len(samples)


def test_outliers_are_left_out_most():
    counts = np.zeros(10)
    for seed in range(60):
        counts[kept(build(seed=seed).refine(batch([0.0] * 9 + [30.0])))] += 1
    assert 9 == int(counts.argmin())


def test_rounding_at_the_start_decides_nothing():
    noise = np.random.default_rng(0).normal(size=10) * 1e-6
    assert kept(build().refine(batch(noise))) == kept(build().refine(batch(noise[::-1])))


def test_the_same_seed_and_state_draw_the_same_pairs():
    gaps = np.linspace(-2, 2, 12)
    assert kept(build(seed=3).refine(batch(gaps))) == kept(build(seed=3).refine(batch(gaps)))


def test_small_gaps_make_a_bold_update_and_large_ones_a_careful_one():
    algorithm = build(drop_share=0.0)
    algorithm.refine(batch([1.0, 1.2]))
    algorithm.refine(batch([0.0, 0.1]))
    bold = algorithm.numbers()["beta"]
    algorithm.refine(batch([3.0, 3.1]))
    assert bold < 0.1 < algorithm.numbers()["beta"]


def test_beta_has_a_floor():
    algorithm = build(drop_share=0.0, floor=0.02)
    algorithm.refine(batch([9.0, 9.0]))
    algorithm.refine(batch([-90.0, -90.0]))
    assert 0.02 == algorithm.numbers()["beta"]


def test_without_modulation_it_is_dpo():
    algorithm, dpo = build(strength=0.0, drop_share=0.0), DPO(DPOConfig())
    samples = batch([5.0, -2.0, 0.5])
    refined = algorithm.refine(samples)
    assert all(np.array_equal(a.loss_mask, b.loss_mask) for a, b in zip(samples, refined, strict=True))
    assert value(evaluate(dpo)) == pytest.approx(value(evaluate(algorithm)), abs=1e-12)
    assert row_gradients(dpo) == {row: pytest.approx(slope) for row, slope in row_gradients(algorithm).items()}


def test_computing_a_loss_changes_no_state():
    algorithm = build()
    algorithm.refine(batch([0.5, 1.5, 2.5]))
    before = algorithm.state(), algorithm.numbers()
    evaluate(algorithm)
    assert before == (algorithm.state(), algorithm.numbers())


def test_the_state_survives_a_checkpoint_bit_for_bit():
    one, other = build(), build()
    one.refine(batch([0.1, 0.7, 1.9]))
    other.restore(json.loads(json.dumps(one.state())))
    for algorithm in (one, other):
        algorithm.refine(batch([0.3, -0.7, 0.9, 2.0, 1.0]))
    assert one.state() == other.state()
    assert one.numbers() == other.numbers()


def test_groups_of_equal_rewards_have_no_gap():
    samples = [replace(sample, reward=0.5) for sample in batch([1.0, 2.0])]
    algorithm = build()
    assert 4 == len(algorithm.refine(samples))
    assert 0.0 == algorithm.state()["updates"]


def test_the_gap_of_several_negatives_is_the_widest_in_reward():
    samples = [*batch([2.0]), replace(answer(0, 2, -4.0), reward=-1.0)]
    algorithm = build(drop_share=0.0)
    algorithm.refine(samples)
    assert 6.0 == pytest.approx(algorithm.numbers()["gap/mean"])


def test_the_loss_uses_the_batchs_beta():
    algorithm = build(drop_share=0.0)
    algorithm.refine(batch(GAPS[0]))
    algorithm.refine(batch(GAPS[1]))
    beta = algorithm.numbers()["beta"]
    assert value(evaluate(DPO(DPOConfig(beta=beta)))) == pytest.approx(value(evaluate(algorithm)))
    assert torch.tensor(beta).isfinite()
