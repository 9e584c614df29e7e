"""Microbatches cover every sample once, within the budget, and their indices lead to the right tokens."""

import numpy as np
import pytest

from posttrain.batches.pack import pack, pack_auto
from posttrain.models.layout import computed_length
from posttrain.types import Block
from tests.models.samples import ragged_groups, sample

LAYOUTS = ("padded", "packed", "shared")
ALL = frozenset(LAYOUTS)


def visible(microbatch, place):
    """Ids that the token at a place of the flattened rows sees, itself last, with their positions."""
    row, column = divmod(place, microbatch.ids.shape[1])
    ids, positions = microbatch.ids[row], microbatch.positions[row]
    seen = np.arange(column + 1) if microbatch.layout == "padded" else path_to(microbatch.blocks, column)
    return ids[seen].tolist(), positions[seen].tolist()


def path_to(blocks, column):
    """Places from the start of a sample to the column, through its block's prefix."""
    for block in blocks:
        prefix = np.arange(block.prefix_start, block.prefix_start + block.prefix_length)
        if column in prefix:
            return prefix[: column - block.prefix_start + 1]
        for start, length in block.branches:
            if start <= column < start + length:
                return np.concatenate([prefix, np.arange(start, column + 1)])
    raise AssertionError(f"no block holds {column}")


@pytest.mark.parametrize("budget", [1, 25, 60, 10**6])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_sample_comes_once(layout, budget):
    samples = ragged_groups()
    found = [id(one) for m in pack(samples, token_budget=budget, layout=layout) for one in m.samples]
    assert sorted(map(id, samples)) == sorted(found)


@pytest.mark.parametrize("budget", [25, 60, 10**6])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_trained_token_is_predicted_from_exactly_its_own_past(layout, budget):
    for microbatch in pack(ragged_groups(), token_budget=budget, layout=layout):
        at = 0
        for one in microbatch.samples:
            for place in np.flatnonzero(one.loss_mask):
                assert one.ids[place] == microbatch.targets[at]
                expected = (one.ids[:place].tolist(), list(range(place)))
                assert expected == visible(microbatch, microbatch.sources[at])
                at += 1
        assert at == len(microbatch.targets) == len(microbatch.sources)


@pytest.mark.parametrize("budget", [40, 60, 100])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_budget_holds(layout, budget):
    for microbatch in pack(ragged_groups(), token_budget=budget, layout=layout):
        assert microbatch.token_count <= budget


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sample_above_the_budget_stands_alone(layout):
    long = sample(range(3, 30), range(3, 10), group=9)
    for microbatch in pack([*ragged_groups(), long], token_budget=20, layout=layout):
        if any(one is long for one in microbatch.samples):
            assert 1 == len(microbatch.samples)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_same_result_every_time(layout):
    first, second = (pack(ragged_groups(), token_budget=60, layout=layout) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        assert one.sources.tolist() == other.sources.tolist()
        assert one.blocks == other.blocks


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_are_whole_numbers(layout):
    microbatch = pack(ragged_groups(), token_budget=60, layout=layout)[0]
    arrays = (microbatch.ids, microbatch.positions, microbatch.sources, microbatch.targets)
    assert [np.int64] * 4 == [array.dtype for array in arrays]


def test_the_last_trained_token_and_what_follows_is_not_computed():
    microbatch = pack([sample([5, 6], [7, 8, 9], mask=[True, True, False])], token_budget=9, layout="packed")[0]
    assert [[5, 6, 7]] == microbatch.ids.tolist()
    assert [7, 8] == microbatch.targets.tolist()


def test_padded_rows_are_sorted_by_length_and_filled_on_the_right():
    samples = [sample([5], [6]), sample([7, 8, 9], [10]), sample([11], [12, 13])]
    microbatch = pack(samples, token_budget=100, layout="padded")[0]
    assert [[7, 8, 9], [11, 12, 0], [5, 0, 0]] == microbatch.ids.tolist()
    assert [[0, 1, 2]] * 3 == microbatch.positions.tolist()
    assert () == microbatch.blocks


def test_padded_microbatch_closes_when_the_next_row_would_not_fit():
    samples = [sample([5] * n, [6], group=n) for n in (4, 4, 4, 1, 1)]
    assert [[4, 4], [4, 1], [1]] == [
        [computed_length(one) for one in m.samples] for m in pack(samples, token_budget=8, layout="padded")
    ]


def test_packed_samples_keep_their_order_and_share_nothing():
    samples = [sample([5, 6], [7]), sample([5, 6], [8, 9], rollout=1)]
    microbatch = pack(samples, token_budget=100, layout="packed")[0]
    assert [[5, 6, 5, 6, 8]] == microbatch.ids.tolist()
    assert [[0, 1, 0, 1, 2]] == microbatch.positions.tolist()
    expected = (
        Block(prefix_start=0, prefix_length=0, branches=((0, 2),)),
        Block(prefix_start=2, prefix_length=0, branches=((2, 3),)),
    )
    assert expected == microbatch.blocks


def test_a_family_has_its_prompt_once_and_longest_branch_first():
    samples = [sample([5, 6], [7, 8], rollout=0), sample([5, 6], [9, 10, 11], rollout=1)]
    microbatch = pack(samples, token_budget=100, layout="shared")[0]
    assert [1, 0] == [one.rollout for one in microbatch.samples]
    assert [[5, 6, 9, 10, 7]] == microbatch.ids.tolist()
    assert [[0, 1, 2, 3, 2]] == microbatch.positions.tolist()
    assert (Block(prefix_start=0, prefix_length=2, branches=((2, 2), (4, 1))),) == microbatch.blocks
    assert [1, 2, 3, 1, 4] == microbatch.sources.tolist()


def test_a_family_scattered_over_the_batch_is_brought_together():
    prompts = {0: [5, 6, 7], 1: [8, 9, 10]}
    samples = [sample(prompts[g], [11, 12], group=g, rollout=r) for r in range(3) for g in (0, 1)]
    microbatch = pack(samples, token_budget=100, layout="shared")[0]
    assert [3, 3] == [block.prefix_length for block in microbatch.blocks]
    assert 12 == microbatch.token_count


def test_one_token_branches_take_no_place():
    samples = [sample([5, 6], [7 + r], rollout=r) for r in range(3)]
    microbatch = pack(samples, token_budget=100, layout="shared")[0]
    assert [[5, 6]] == microbatch.ids.tolist()
    assert [1, 1, 1] == microbatch.sources.tolist()


def test_samples_of_other_groups_do_not_share_even_equal_prompts():
    samples = [sample([5, 6], [7, 8], group=g) for g in (0, 1)]
    assert [0, 0] == [b.prefix_length for b in pack(samples, token_budget=99, layout="shared")[0].blocks]


def test_unequal_prompts_of_one_group_do_not_share():
    samples = [sample([5, 6], [7, 8]), sample([5, 9], [7, 8], rollout=1)]
    assert [0, 0] == [b.prefix_length for b in pack(samples, token_budget=99, layout="shared")[0].blocks]


def test_a_family_above_the_budget_is_split_and_repeats_its_prompt():
    samples = [sample([5] * 10, [6] * 6, rollout=r) for r in range(5)]
    found = pack(samples, token_budget=20, layout="shared")
    assert [2, 2, 1] == [len(m.samples) for m in found]
    assert [20, 20, 15] == [m.token_count for m in found]


def test_a_family_that_does_not_fit_begins_a_new_microbatch():
    samples = [sample([5] * 6, [6] * 3, group=g, rollout=r) for g in range(2) for r in range(2)]
    found = pack(samples, token_budget=15, layout="shared")
    assert [{0}, {1}] == [{one.group for one in m.samples} for m in found]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sample_that_trains_nothing_costs_nothing(layout):
    idle, busy = sample([5, 6], [7], mask=[False]), sample([5, 6], [7], rollout=1)
    microbatches = pack([idle, busy], token_budget=100, layout=layout)
    assert 2 == sum(m.token_count for m in microbatches)
    assert 1 == sum(len(m.targets) for m in microbatches)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_samples_that_train_nothing(layout):
    microbatches = pack([sample([5, 6], [7], mask=[False])] * 2, token_budget=100, layout=layout)
    assert 0 == sum(m.token_count for m in microbatches)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_samples_give_no_microbatches(layout):
    assert [] == pack([], token_budget=10, layout=layout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_trained_first_token_is_refused(layout):
    bad = sample([], [5, 6], group=4, rollout=2)
    with pytest.raises(ValueError, match="group 4, rollout 2 trains its first token"):
        pack([bad], token_budget=10, layout=layout)


def test_a_budget_below_one_is_refused():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        pack(ragged_groups(), token_budget=0, layout="packed")


def test_an_unknown_layout_is_refused():
    with pytest.raises(ValueError, match="got 'dense'"):
        pack(ragged_groups(), token_budget=10, layout="dense")


def layout_of(samples, allowed=ALL):
    return {m.layout for m in pack_auto(samples, token_budget=10**5, allowed=allowed)}


def test_auto_takes_padded_rows_for_equal_lengths():
    assert {"padded"} == layout_of([sample([5], [6] * 20, group=g) for g in range(8)])


def test_auto_packs_ragged_lengths():
    assert {"packed"} == layout_of([sample([5], [6] * n, group=n) for n in range(2, 40, 3)])


def test_auto_shares_long_prompts():
    assert {"shared"} == layout_of([sample([5] * 50, [6] * 10, rollout=r) for r in range(8)])


def test_auto_keeps_to_what_is_allowed():
    samples = [sample([5] * 50, [6] * 10, rollout=r) for r in range(8)]
    assert {"padded"} == layout_of(samples, frozenset(["padded"]))


def test_auto_without_any_layout_is_refused():
    with pytest.raises(ValueError, match="no layout"):
        pack_auto(ragged_groups(), token_budget=10, allowed=frozenset())
