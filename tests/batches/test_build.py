"""Groups to samples: advantages in their places, exact weights, minibatches by group, what moves, and scatter."""

import numpy as np
import pytest

from posttrain.batches.build import build_samples, moves, moving, scatter, split_minibatches, weigh
from posttrain.types import Ending, Group
from tests.models.samples import sample
from tests.records.examples import TASK, build_group, build_rollout, build_segment


def trained(one, array):
    return array[one.loss_mask].tolist()


def group_of(*rollouts, position=4):
    return Group(position=position, task=TASK, rollouts=rollouts)


def weights(counts, mode, *, groups=None, rollouts=None, constant=None):
    """Weight of each row's first trained token, rows of one prompt token and so many trained ones."""
    rows = [
        sample([5], [6] * n, group=(groups or [0] * len(counts))[i], rollout=(rollouts or range(len(counts)))[i])
        for i, n in enumerate(counts)
    ]
    return [
        one.token_weight["policy"][1] if n else 0.0
        for one, n in zip(weigh(rows, {"policy": mode}, constant=constant), counts, strict=True)
    ]


def test_a_number_spreads_over_the_sampled_tokens():
    (one,) = build_samples([group_of(build_rollout())], [[np.asarray(0.25)]])
    np.testing.assert_array_equal([np.nan, np.nan, 0.25, 0.25], one.advantages)


def test_token_advantages_go_to_their_tokens():
    (one,) = build_samples([group_of(build_rollout())], [[np.array([0.5, -1.0])]])
    assert [0.5, -1.0] == trained(one, one.advantages)


def test_segments_of_a_rollout_share_its_advantages_in_order():
    rollout = build_rollout(segments=(build_segment((5, 6, 7, 8)), build_segment((5, 6, 7, 8, 9))))
    one, two = build_samples([group_of(rollout)], [[np.array([1.0, 2.0, 3.0, 4.0, 5.0])]])
    assert ([1.0, 2.0], [3.0, 4.0, 5.0]) == (trained(one, one.advantages), trained(two, two.advantages))


def test_segments_keep_group_and_rollout():
    rollout = build_rollout(2, segments=(build_segment(), build_segment()))
    assert [(4, 2), (4, 2)] == [(s.group, s.rollout) for s in build_samples([group_of(rollout)], [[np.asarray(1.0)]])]


def test_samples_come_in_group_and_rollout_order():
    samples = build_samples([build_group(7), build_group(3)], [[np.asarray(1.0)] * 2] * 2)
    assert [(7, 0), (7, 1), (3, 0), (3, 1)] == [(s.group, s.rollout) for s in samples]


def test_an_empty_completion_is_a_sample_that_trains_nothing():
    rollout = build_rollout(segments=(build_segment((5, 6), prompt_length=2),))
    (one,) = build_samples([group_of(rollout)], [[np.asarray(1.0)]])
    assert not one.loss_mask.any()


def test_ids_and_bookkeeping_are_the_segments_own():
    segment = build_segment((5, 6, 7, 8))
    (one,) = build_samples([group_of(build_rollout(segments=(segment,)))], [[np.asarray(1.0)]])
    assert (segment.ids, segment.versions, segment.turns, 2) == (
        tuple(one.ids),
        tuple(one.versions),
        tuple(one.turns),
        one.prompt_length,
    )


def test_reward_and_ending_travel_along():
    (one,) = build_samples([group_of(build_rollout(reward=0.5, ending=Ending.LENGTH))], [[np.asarray(1.0)]])
    assert (0.5, Ending.LENGTH) == (one.reward, one.ending)


def test_too_few_token_advantages_are_refused():
    with pytest.raises(ValueError, match=r"group 4 rollout 0: \(3,\) advantages for 2 sampled tokens"):
        build_samples([group_of(build_rollout())], [[np.zeros(3)]])


def test_too_few_rollout_advantages_are_refused():
    with pytest.raises(ValueError):
        build_samples([build_group()], [[np.asarray(1.0)]])


def test_token_mean_counts_every_trained_token():
    assert [1 / 6] * 3 == weights([1, 2, 3], "token-mean")


def test_sequence_mean_of_token_means():
    assert pytest.approx([1 / 3, 1 / 6, 1 / 9], abs=1e-15) == weights([1, 2, 3], "seq-mean-token-mean")


def test_a_constant_length():
    assert [1 / 20] * 2 == weights([1, 3], "seq-mean-token-sum-norm", constant=10.0)


def test_rollout_mean_counts_segments_of_a_rollout_as_one():
    assert [1 / 8, 1 / 8, 1 / 4] == weights([1, 3, 2], "rollout-mean", rollouts=[0, 0, 1])


def test_the_same_rollout_index_in_two_groups_is_two_rollouts():
    assert [1 / 2, 1 / 6] == weights([1, 3], "rollout-mean", groups=[0, 1], rollouts=[0, 0])


def test_prompt_mean_counts_groups_the_same():
    assert [1 / 8, 1 / 8, 1 / 4] == weights([1, 3, 2], "prompt-mean", groups=[3, 3, 9])


def test_an_empty_completion_counts_in_no_denominator():
    assert [0.0, 1 / 2, 1 / 2] == weights([0, 1, 1], "seq-mean-token-mean")


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "rollout-mean", "prompt-mean"])
def test_weights_sum_to_one_over_the_step(mode):
    rows = [sample([5, 6], [7] * n, group=g, rollout=r) for g, r, n in [(0, 0, 4), (0, 1, 1), (2, 0, 7), (2, 1, 0)]]
    found = weigh(rows, {"policy": mode})
    assert 1.0 == pytest.approx(sum(float(one.token_weight["policy"].sum()) for one in found), abs=1e-12)


def test_weights_are_zero_where_nothing_trains():
    (one,) = weigh([sample([5, 6], [7, 8], mask=[True, False])], {"policy": "token-mean"})
    assert [0.0, 0.0, 1.0, 0.0] == one.token_weight["policy"].tolist()


def test_every_part_has_its_own_stream():
    (one, _) = weigh([sample([5], [6]), sample([5], [6, 7])], {"policy": "token-mean", "kl": "seq-mean-token-mean"})
    assert (1 / 3, 1 / 2) == (one.token_weight["policy"][1], one.token_weight["kl"][1])


def test_a_mismatch_weight_enters_the_policy_stream_only():
    row = sample([5], [6, 7], mismatch=np.array([9.0, 0.5, 2.0]))
    (one,) = weigh([row], {"policy": "token-mean", "kl": "token-mean"})
    assert ([0.25, 1.0], [0.5, 0.5]) == (trained(one, one.token_weight["policy"]), trained(one, one.token_weight["kl"]))


def test_counts_of_the_whole_step_travel_along():
    found = weigh(
        [sample([5], [6], group=1), sample([5], [6, 7], group=2), sample([5], [], group=2)], {"policy": "token-mean"}
    )
    expected = {"rows": 2.0, "tokens": 3.0, "groups": 2.0}
    assert expected == {name: found[0].totals[name] for name in expected}


def test_no_samples_weigh_nothing():
    assert [] == weigh([], {"policy": "token-mean"})


def test_still_samples_count_in_the_denominator_and_are_left_out():
    still, lively = sample([5], [6, 7], advantages=np.zeros(3)), sample([5], [6, 7], rollout=1)
    (alive,) = moving(weigh([still, lively], {"policy": "token-mean"}))
    assert (1, 0.25) == (alive.rollout, alive.token_weight["policy"][1])


def test_another_loss_part_moves_a_sample_without_advantage():
    still = sample([5], [6, 7], advantages=np.zeros(3))
    assert 1 == len(moving(weigh([still], {"policy": "token-mean", "kl": "token-mean"})))


def test_nothing_that_trains_nothing_moves():
    assert not moves(sample([5], []), {"policy": 1, "kl": 1})


def test_an_advantage_where_nothing_trains_does_not_move():
    advantages = np.array([7.0, 0.0, np.nan])
    assert not moves(sample([5], [6, 7], mask=[True, False], advantages=advantages), ["policy"])


@pytest.mark.parametrize("value", [-0.0, 0.0])
def test_zero_has_no_sign(value):
    assert not moves(sample([5], [6], advantages=np.full(2, value)), ["policy"])


def rows_of(groups, size):
    return [sample([5], [6], group=g, rollout=r) for g in range(groups) for r in range(size)]


def test_one_minibatch_keeps_the_order():
    rows = rows_of(3, 2)
    assert [rows] == split_minibatches(rows, 1, (0, 0, 0))


@pytest.mark.parametrize("count", [2, 3, 4])
def test_minibatches_cover_every_sample_once(count):
    rows = rows_of(7, 3)
    parts = split_minibatches(rows, count, (0, 1))
    assert sorted(map(id, rows)) == sorted(id(s) for part in parts for s in part)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_minibatches_never_split_a_group(count):
    parts = split_minibatches(rows_of(7, 3), count, (0, 1))
    assert 7 == sum(len({s.group for s in part}) for part in parts)


def test_minibatches_are_as_equal_as_groups_allow():
    assert [9, 6, 6] == [len(part) for part in split_minibatches(rows_of(7, 3), 3, (0, 1))]


def test_minibatches_depend_on_the_seed_alone():
    rows = rows_of(8, 1)
    first, again, other = (split_minibatches(rows, 2, seed) for seed in [(0, 1), (0, 1), (0, 2)])
    assert (True, False) == (first == again, first == other)


def test_minibatches_without_a_group_are_left_out():
    assert 2 == len(split_minibatches(rows_of(2, 3), 4, (0, 1)))


def test_no_samples_make_no_minibatch():
    assert [] == split_minibatches([], 2, (0, 1))


def test_scatter_puts_values_where_tokens_train():
    rows = [sample([5], [6, 7, 8], mask=[True, False, True]), sample([5], []), sample([5, 6], [7])]
    found = scatter(rows, np.array([1.0, 2.0, 3.0]))
    expected = [[np.nan, 1.0, np.nan, 2.0], [np.nan], [np.nan, np.nan, 3.0]]
    for row, values in zip(expected, found, strict=True):
        np.testing.assert_array_equal(row, values)
