"""An algorithm's effect on stored tokens equals its formula by hand, and what the batch lacks is said."""

import dataclasses
import math

import numpy as np
import pytest

from posttrain.compare.effect import attached, carriers, effect_of, lacking, segment_numbers
from posttrain.compare.sides import resolve
from posttrain.compare.stored import packaged
from posttrain.plugs import plug_names
from posttrain.types import Needs

BATCH = packaged()
FIRST = BATCH.first_step()


def tokens_of(group, rollout):
    return [(group.position, rollout.index, 0, place) for place, on in enumerate(rollout.segments[0].loss_mask) if on]


def rollouts():
    return [(group, rollout) for group in BATCH.groups for rollout in group.rollouts]


def standardised(group, epsilon=1e-6):
    rewards = np.array(group.rewards)
    if len(set(group.rewards)) == 1:
        return np.zeros(len(rewards))
    return (rewards - rewards.mean()) / (rewards.std(ddof=1) + epsilon)


def test_the_first_step_of_grpo_is_the_advantage_over_rows_and_length():
    found = effect_of(resolve("grpo", ["kl_coefficient=0.0"]), FIRST)
    rows = len(rollouts())
    for group in BATCH.groups:
        for rollout, advantage in zip(group.rollouts, standardised(group), strict=True):
            keys = tokens_of(group, rollout)
            expected = -advantage / (rows * len(keys))
            for key in keys:
                assert pytest.approx(expected, abs=1e-12) == found.coefficients.get(key, 0.0)


def test_the_first_step_of_a_token_mean_is_the_advantage_over_all_tokens():
    found = effect_of(resolve("verl-0.10", ["epsilon=1e-4"]), FIRST)
    count = sum(rollout.sampled_count for _, rollout in rollouts())
    for group in BATCH.groups:
        for rollout, advantage in zip(group.rollouts, standardised(group, 1e-4), strict=True):
            for key in tokens_of(group, rollout):
                assert pytest.approx(-advantage / count, abs=1e-12) == found.coefficients.get(key, 0.0)


def test_a_later_step_has_the_ratio_and_the_clip_in_it():
    found = effect_of(resolve("verl-0.10"), BATCH)
    count = sum(rollout.sampled_count for _, rollout in rollouts())
    for key, advantage in found.advantages.items():
        now = BATCH.numbers["logprobs"][key[:2]][0][key[3]]
        ratio = math.exp(now - BATCH.numbers["old_logprobs"][key[:2]][0][key[3]])
        clipped = (advantage > 0 and ratio > 1.2) or (advantage < 0 and (ratio < 0.8 or ratio > 3.0))
        expected = 0.0 if clipped else -advantage * ratio / count
        assert pytest.approx(expected, abs=1e-12) == found.coefficients[key]


def test_the_kl_pulls_on_tokens_of_equal_groups_too():
    equal = {group.position for group in BATCH.groups if len(set(group.rewards)) == 1}
    found = effect_of(resolve("grpo"), BATCH)
    assert equal
    assert any(value != 0 for key, value in found.coefficients.items() if key[0] in equal)


def test_dpo_s_coefficient_is_minus_beta_sigmoid_over_the_pairs():
    found = effect_of(resolve("dpo"), BATCH)
    pairs, _ = carriers(Needs(engine=False, data="preferences"), BATCH.groups)
    chosen, rejected = pairs[0].rollouts

    def log_ratio(rollout):
        key = (pairs[0].position, rollout.index)
        mask = np.array(rollout.segments[0].loss_mask)
        return (BATCH.numbers["logprobs"][key][0] - BATCH.numbers["ref_logprobs"][key][0])[mask].sum()

    push = 0.1 / (1 + math.exp(0.1 * (log_ratio(chosen) - log_ratio(rejected)))) / len(pairs)
    for rollout, sign in ((chosen, -1), (rejected, 1)):
        for key in tokens_of(pairs[0], rollout):
            assert pytest.approx(sign * push, abs=1e-12) == found.coefficients[key]


def test_a_preference_pair_is_the_best_and_the_worst_of_a_group():
    pairs, notes = carriers(Needs(engine=False, data="preferences"), BATCH.groups)
    originals = {group.position: group.rewards for group in BATCH.groups}
    assert pairs
    assert all((max(originals[p.position]), min(originals[p.position])) == p.rewards for p in pairs)
    assert "stand for" in notes[0]


def test_demonstrations_are_the_best_rollouts_of_a_mixed_group():
    found, _ = carriers(Needs(engine=False), BATCH.groups)
    assert all(len(set(group.rewards)) == 1 for group in found)
    assert sum(len(set(group.rewards)) > 1 for group in BATCH.groups) == len(found)


def test_labels_are_single_rollouts_called_good_or_bad():
    found, _ = carriers(Needs(engine=False, data="labels"), BATCH.groups)
    assert len(rollouts()) == len(found)
    assert {0.0, 1.0} == {group.rewards[0] for group in found}


def test_online_algorithms_get_the_groups_as_they_are():
    assert (list(BATCH.groups), ()) == carriers(Needs(), BATCH.groups)


def test_segments_of_one_rollout_are_numbered():
    samples = [
        dataclasses.make_dataclass("S", ["group", "rollout"])(group, rollout)
        for group, rollout in ((1, 0), (1, 0), (1, 1), (2, 0))
    ]
    assert [0, 1, 0, 0] == segment_numbers(samples)


def test_only_known_numbers_are_attached():
    bare = dataclasses.replace(BATCH, numbers={"logprobs": BATCH.numbers["logprobs"]})
    assert [] == attached([], [], bare)


@pytest.mark.parametrize("name", plug_names("algorithms"))
def test_every_algorithm_has_an_effect_or_a_reason(name):
    side = resolve(name)
    reason = lacking(side, BATCH)
    if reason is not None:
        assert reason.startswith("it ")
        return
    found = effect_of(side, FIRST)
    assert all(math.isfinite(value) for value in found.coefficients.values())
    assert any(found.coefficients.values())


@pytest.mark.parametrize(
    ("algorithm", "missing"),
    [("grpo", "ref_logprobs"), ("ppo", "values"), ("opd", "teacher_logprobs"), ("remax", "greedy")],
)
def test_what_the_batch_lacks_is_named(algorithm, missing):
    bare = dataclasses.replace(
        BATCH,
        numbers={name: BATCH.numbers[name] for name in ("logprobs", "old_logprobs")},
        groups=tuple(dataclasses.replace(group, greedy=None) for group in BATCH.groups),
    )
    assert missing in str(lacking(resolve(algorithm), bare))


@pytest.mark.parametrize(
    ("algorithm", "changes", "words"),
    [("kd", [], "over the whole vocabulary"), ("dpo", ["weighting=wpo"], "two draws agree")],
)
def test_what_no_batch_can_hold_is_said_in_words(algorithm, changes, words):
    assert words in str(lacking(resolve(algorithm, changes), BATCH))


def test_rankings_are_not_in_the_batch():
    assert "rankings" in str(lacking(resolve("plackett_luce"), BATCH))


def test_a_filter_that_drops_groups_is_noted():
    found = effect_of(resolve("grpo", ["drop_degenerate=true"]), BATCH)
    assert "1 of 8 groups dropped by its filter" in found.notes


def test_nothing_to_move_is_said():
    equal = tuple(group for group in BATCH.groups if len(set(group.rewards)) == 1)
    still = dataclasses.replace(BATCH, groups=equal)
    found = effect_of(resolve("grpo", ["kl_coefficient=0.0"]), still)
    assert ({}, True) == (dict(found.coefficients), "nothing in this batch moves it" in found.notes)


def shifted(amount):
    """The batch as if the engine had reported log-probabilities larger by ``amount``."""
    groups = [
        dataclasses.replace(
            group,
            rollouts=tuple(
                dataclasses.replace(
                    rollout,
                    segments=tuple(
                        dataclasses.replace(s, rollout_logprobs=tuple(value + amount for value in s.rollout_logprobs))
                        for s in rollout.segments
                    ),
                )
                for rollout in group.rollouts
            ),
        )
        for group in FIRST.groups
    ]
    return dataclasses.replace(FIRST, groups=tuple(groups))


@pytest.mark.parametrize(
    ("changes", "factor"),
    [
        (["correction.type=decoupled", "correction.weight=truncate"], math.exp(0.5)),
        (["correction.type=decoupled", "correction.weight=truncate", "correction.cap=1.5"], 1.5),
        (["correction.type=decoupled", "correction.weight=mask", "correction.cap=1.5"], 0.0),
        (["correction.type=bypass", "clip_high=9.0", "clip_low=1.0"], math.exp(0.5)),
    ],
)
def test_a_correction_weighs_or_drops_the_tokens(changes, factor):
    batch, plain = shifted(-0.5), effect_of(resolve("verl-0.10", ["dual_clip=none"]), FIRST)
    found = effect_of(resolve("verl-0.10", ["dual_clip=none", *changes]), batch)
    for key, value in plain.coefficients.items():
        assert pytest.approx(factor * value, rel=2e-3, abs=1e-12) == found.coefficients.get(key, 0.0)
