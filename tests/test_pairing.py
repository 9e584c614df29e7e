"""Answers out of tokens and pairs out of answers: segments, orders, rewards that tie or are missing, denominators."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from posttrain.batches.build import comparisons, weigh
from posttrain.pairing import (
    Comparing,
    build_pairs,
    companions,
    equal_pair,
    find_answers,
    find_pairs,
    group_gaps,
    list_weight,
    log_ratios,
    roles,
    winners,
)
from posttrain.types import Sample, TokenBatch
from tests.algorithms.examples import group

NAN = math.nan


def tokens(samples, groups, rollouts, rewards, **more) -> TokenBatch:
    """A batch whose tokens belong to these samples."""
    count = len(samples)
    return TokenBatch(
        samples=torch.tensor(samples),
        sample_count=len(groups),
        advantages=torch.ones(count),
        token_weight={},
        ref_logprobs=torch.zeros(count),
        groups=torch.tensor(groups),
        rollouts=torch.tensor(rollouts),
        rewards=torch.tensor(rewards),
        **more,
    )


def answers(rewards, groups=None):
    """One token per answer."""
    count = len(rewards)
    batch = tokens(range(count), groups or [0] * count, list(range(count)), rewards)
    return find_answers(batch, -torch.arange(1.0, count + 1))


def sample(group=0, rollout=0, reward=1.0, *, trained=2, advantage=1.0, old=-1.0, ref=-1.0) -> Sample:
    size = 1 + trained
    mask = np.arange(size) > 0
    return Sample(
        ids=np.arange(size),
        loss_mask=mask,
        prompt_length=1,
        group=group,
        rollout=rollout,
        reward=reward,
        advantages=np.where(mask, advantage, NAN),
        rollout_logprobs=np.full(size, NAN),
        versions=np.full(size, -1),
        turns=np.full(size, -1),
        old_logprobs=np.where(mask, old, NAN),
        ref_logprobs=np.where(mask, ref, NAN),
    )


def pairs_of(found):
    return sorted(zip(*(part.tolist() for part in found), strict=True))


def test_an_answer_sums_its_tokens_in_float64():
    found = find_answers(tokens([0, 0, 1], [0, 0], [0, 1], [1.0, 0.0]), torch.tensor([-1.0, -2.0, -4.0]))
    assert ([-3.0, -4.0], torch.float64) == (found.sums.tolist(), found.sums.dtype)


def test_segments_apart_in_the_batch_are_one_answer():
    batch = tokens([0, 1, 2, 2], [5, 5, 5], [0, 1, 0], [1.0, 0.0, 1.0])
    found = find_answers(batch, torch.tensor([-1.0, -2.0, -4.0, -8.0]))
    assert ([-13.0, -2.0], [1.0, 0.0]) == (found.sums.tolist(), found.rewards.tolist())
    assert [-1.0, -4.0, -8.0, -2.0] == found.logprobs.tolist()
    assert [0, 2, 3, 1] == found.ordered(torch.arange(4)).tolist()


def test_groups_are_numbered_from_zero():
    found = answers([1.0, 0.0, 1.0], [9, 9, 4])
    assert ([0, 1, 1], 2) == (sorted(found.groups.tolist()), found.group_count)


def test_a_batch_without_rollout_numbers_has_one_answer_per_sample():
    batch = replace(tokens([0, 1], [0, 0], [0, 0], [1.0, 0.0]), rollouts=None)
    assert 2 == find_answers(batch, torch.tensor([-1.0, -2.0])).count


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1.0, 0.0], [(0, 1)]),
        ([0.0, 1.0], [(1, 0)]),
        ([1.0, 0.0, 0.0], [(0, 1), (0, 2)]),
        ([2.0, 1.0, 0.0], [(0, 1), (0, 2), (1, 2)]),
        ([0.7, 0.7], []),
        ([1.0, NAN, 0.0], [(0, 2)]),
        ([NAN, NAN], []),
    ],
)
def test_two_answers_with_different_rewards_are_a_pair(rewards, expected):
    assert expected == pairs_of(find_pairs(answers(rewards)))


def test_answers_of_different_groups_are_no_pair():
    assert [(0, 1)] == pairs_of(find_pairs(answers([1.0, 0.0, 0.5], [0, 0, 1])))


@pytest.mark.parametrize(
    ("rewards", "groups", "expected"),
    [
        ([0.4, 0.9, 0.1], [0, 0, 0], [(1, 2)]),
        ([0.9, 0.9, 0.1, 0.1], [0] * 4, [(0, 2)]),
        ([0.5, 0.5], [0, 0], []),
        ([1.0, 0.0, 0.3, 0.6, 0.2], [0, 0, 1, 1, 1], [(0, 1), (3, 4)]),
        ([-1.0, -5.0, -3.0], [0] * 3, [(0, 1)]),
    ],
)
def test_the_best_against_the_worst(rewards, groups, expected):
    assert expected == pairs_of(find_pairs(answers(rewards, groups), "best_worst"))


@pytest.mark.parametrize("rewards", [[0.4, 0.9, 0.1], [0.9, 0.9, 0.1, 0.1], [1.0, 0.0], [-1.0, -5.0, -3.0, -5.0]])
def test_who_takes_part_is_who_is_paired(rewards):
    taking = {place for place, role in enumerate(roles(group(rewards), "best_worst")) if float(role)}
    paired = {place for pair in pairs_of(find_pairs(answers(rewards), "best_worst")) for place in pair}
    assert paired == taking


def test_roles_of_a_ranking():
    assert [1.0, 1.0, -1.0, -1.0] == [float(role) for role in roles(group([2.0, 1.0, 0.0, 0.0]))]


def test_winners_are_the_best_of_their_group():
    assert [True, False, True, True, False] == winners(answers([1.0, 0.5, 0.2, 0.2, NAN], [0, 0, 1, 1, 1])).tolist()


def test_a_pairs_companion_is_the_row_without_a_reward():
    own, ref = companions(answers([1.0, 0.0, NAN]), "best_worst")
    assert ([-3.0], [0.0]) == (own.tolist(), ref.tolist())


def test_without_a_companion_the_chosen_answer_stands_for_itself():
    own, _ = companions(answers([1.0, 0.0]), "best_worst")
    assert [-1.0] == own.tolist()


def test_a_list_counts_once_however_long():
    batch = tokens(range(5), [0, 0, 0, 1, 1], range(5), [2.0, 1.0, 0.0, 1.0, 1.0])
    assert 1.0 == list_weight(batch, find_answers(batch, -torch.ones(5)))


def test_the_equal_pair_has_no_gap():
    assert [0.0] == equal_pair().gap.tolist()


def test_denominators_are_those_of_the_whole_step():
    class Plain(Comparing):
        """Nothing of its own."""

    batch = tokens([0, 1], [0, 0], [0, 1], [1.0, 0.0], totals={"pairs": 5.0, "pair_tokens": 40.0})
    pairs = build_pairs(find_answers(batch, -torch.ones(2)))
    assert {"batch_pairs": 5, "batch_tokens": 40} == Plain().pair_totals(batch, pairs)
    assert 0.2 == Plain().pair_weight(batch, pairs)


def test_every_group_is_kept():
    assert Comparing().keep(group([0.5, 0.5]))


def test_the_step_counts_pairs_their_chosen_tokens_and_groups():
    rows = [
        sample(0, 0, 1.0, trained=3),
        sample(0, 1, 0.0),
        sample(0, 2, 0.0),
        sample(1, 0, 0.5),
        sample(1, 1, 0.5),
        sample(2, 0, 1.0, trained=5),
        sample(2, 1, 0.0),
    ]
    expected = {"rollouts": 7.0, "pairs": 3.0, "pair_tokens": 11.0, "comparing": 2.0}
    assert expected == comparisons(rows)
    assert expected.items() <= weigh(rows, {})[0].totals.items()


def test_rows_that_cannot_move_are_not_counted():
    rows = [sample(0, 0, 1.0), sample(0, 1, 0.5, advantage=0.0), sample(0, 2, 0.0), sample(0, 3, NAN)]
    assert (1.0, 3.0) == (weigh(rows, {})[0].totals["pairs"], weigh(rows, {})[0].totals["rollouts"])


def test_segments_of_an_answer_count_as_one():
    rows = [sample(0, 0, 1.0), sample(0, 0, 1.0, trained=4), sample(0, 1, 0.0)]
    assert {"rollouts": 2.0, "pairs": 1.0, "pair_tokens": 6.0, "comparing": 1.0} == comparisons(rows)


def test_log_ratios_of_the_step_add_up_segments():
    rows = [sample(0, 0, old=-1.5), sample(0, 0, old=-2.0, trained=1), sample(1, 0, old=-1.0)]
    assert {(0, 0): -2.0, (1, 0): 0.0} == pytest.approx(log_ratios(rows))


def test_gaps_of_the_step_are_best_minus_worst():
    rows = [sample(0, 0, 1.0, old=-0.5), sample(0, 1, 0.0, old=-2.0), sample(1, 0, 0.5), sample(1, 1, 0.5)]
    assert {0: 3.0} == pytest.approx(group_gaps(rows))


def test_the_whole_steps_numbers_must_be_there():
    with pytest.raises(ValueError, match="carry none"):
        log_ratios([replace(sample(), old_logprobs=None)])
