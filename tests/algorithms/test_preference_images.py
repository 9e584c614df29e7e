"""mDPO: golden terms through the real class, and training on a tiny vision-language model."""

import copy
import functools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from posttrain.algorithms.dpo import DPO
from posttrain.algorithms.dpo import Config as DPOConfig
from posttrain.algorithms.mdpo import MDPO, Config
from posttrain.batches.pack import pack_whole_groups
from posttrain.config import Batches, validate
from posttrain.errors import ConfigError, DataError
from posttrain.learners.local import Config as LearnerConfig
from posttrain.learners.local import LocalLearner
from posttrain.loops.update import update
from posttrain.types import TokenBatch
from tests.algorithms.preferences import value
from tests.golden.fixtures_preference import F3, golden
from tests.tiny_vision import build_vision, picture, seen

TERMS = golden("pref")["mdpo.example"]


def one_pair() -> tuple[TokenBatch, torch.Tensor]:
    """Chosen, rejected and corrupted row of the golden example, one token each."""
    ref = torch.tensor([F3["ref_c"][0], F3["ref_r"][0], -14.6], dtype=torch.float64)
    batch = TokenBatch(
        samples=torch.arange(3),
        sample_count=3,
        advantages=torch.ones(3, dtype=torch.float64),
        token_weight={},
        ref_logprobs=ref,
        groups=torch.zeros(3, dtype=torch.long),
        rollouts=torch.tensor([0, 1, -1]),
        rewards=torch.tensor([1.0, 0.0, math.nan], dtype=torch.float64),
    )
    return batch, torch.tensor([F3["pi_c"][0], F3["pi_r"][0], -15.0], dtype=torch.float64, requires_grad=True)


def pairs(count=3, **changes):
    """Pairs of answers under pictures of their own."""
    rows = []
    for group in range(count):
        images = {"pixel_values": picture(group, **changes)}
        rows.append(seen([5, 6], [7, 8, 2], group=group, rollout=0, reward=1.0, images=images))
        rows.append(seen([5, 6], [9, 2], group=group, rollout=1, reward=0.0, advantage=-1.0, images=images))
    return rows


def learner(algorithm, **changes):
    """A tiny vision-language model and its frozen copy."""
    model = build_vision(**changes)
    return LocalLearner(
        LearnerConfig(learning_rate=3e-3),
        model,
        temperature=1.0,
        total_steps=100,
        needs=algorithm.needs,
        reference_model=copy.deepcopy(model),
    )


def step(rows, trainer, algorithm, budget=1000):
    pack = functools.partial(pack_whole_groups, token_budget=budget, allowed=trainer.layouts)
    result = update(rows, learner=trainer, algorithm=algorithm, pack=pack, batches=Batches(), constant=9.0, seed=(0,))
    return {name: stat.result for name, stat in result.stats.items()}


def test_the_three_terms_are_the_golden_ones():
    batch, leaf = one_pair()
    loss = MDPO(Config()).loss(batch, leaf, None, None)
    for name in ("response", "image", "anchor"):
        assert TERMS[name] == pytest.approx(loss.stats[f"loss/{name}"].result, abs=1e-9)
    assert TERMS["total"] == pytest.approx(value(loss), abs=1e-9)


def test_the_corrupted_row_is_pushed_down():
    batch, leaf = one_pair()
    (slope,) = torch.autograd.grad(MDPO(Config()).loss(batch, leaf, None, None).total, leaf)
    assert slope[0] < 0 < slope[2]


def test_only_chosen_answers_get_a_corrupted_row():
    added = MDPO(Config()).extend(pairs())[6:]
    assert [(0, -1), (1, -1), (2, -1)] == [(row.group, row.rollout) for row in added]
    assert all(math.isnan(row.reward) for row in added)


def test_the_corrupted_picture_differs_and_has_the_same_shape():
    rows = MDPO(Config()).extend(pairs(1))
    true, spoiled = (row.images["pixel_values"] for row in (rows[0], rows[2]))
    assert true.shape == spoiled.shape
    assert not torch.equal(true, spoiled)
    assert np.array_equal(rows[0].ids, rows[2].ids)


def test_the_same_seed_spoils_the_same_way():
    one, other = (MDPO(Config(seed=4)).extend(pairs(1))[2].images["pixel_values"] for _ in range(2))
    assert torch.equal(one, other)


def test_a_row_without_a_picture_is_refused():
    rows = [replace(row, images={}) for row in pairs(1)]
    with pytest.raises(DataError, match="for text alone use dpo"):
        MDPO(Config()).extend(rows)


def test_training_starts_at_three_ln_2():
    algorithm = MDPO(Config())
    stats = step(pairs(), learner(algorithm), algorithm)
    assert 3 * math.log(2) == pytest.approx(stats["loss"], abs=1e-5)


def test_the_microbatch_split_changes_nothing():
    algorithm, losses, weights = MDPO(Config()), [], []
    for budget in (1000, 30):
        trainer = learner(algorithm, dtype=torch.float64)
        for _ in range(2):
            stats = step(pairs(dtype=torch.float64), trainer, algorithm, budget)
        losses.append(stats["loss"])
        weights.append(torch.cat([p.detach().flatten() for _, p in trainer.named_tensors()]))
    assert losses[0] == pytest.approx(losses[1], abs=1e-9)
    assert torch.allclose(weights[0], weights[1], atol=1e-9)


def test_pictures_matter_to_dpo_too():
    algorithm = DPO(DPOConfig())
    trainer = learner(algorithm)
    step(pairs(), trainer, algorithm)
    true = step(pairs(), trainer, algorithm)["logprobs/chosen"]
    other = [replace(row, images={"pixel_values": picture(99)}) for row in pairs()]
    assert true != pytest.approx(step(other, trainer, algorithm)["logprobs/chosen"], abs=1e-4)


@pytest.mark.slow
def test_the_model_learns_to_look():
    algorithm = MDPO(Config())
    trainer = learner(algorithm)
    stats = [step(pairs(), trainer, algorithm) for _ in range(40)]
    assert stats[-1]["loss/image"] < 0.6 < stats[0]["loss/image"]
    assert stats[-1]["margin/mean"] > 1.0


@pytest.mark.parametrize("options", [{"smallest_crop": 0.5}, {"largest_crop": 1.5}, {"beta": -1.0}])
def test_impossible_options_are_refused(options):
    with pytest.raises(ConfigError):
        validate(Config, options, where="test")
