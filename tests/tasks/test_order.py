"""The order is a permutation per epoch, from numbers alone."""

from collections import Counter
from hashlib import blake2b

import pytest

from posttrain.tasks.order import TaskOrder, permute, rollout_seed, stable_hash


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 9, 100, 257])
@pytest.mark.parametrize("epoch", [0, 1, 7])
def test_every_epoch_holds_each_task_once(size, epoch):
    order = TaskOrder(size, seed=3)
    assert list(range(size)) == sorted(order.index(epoch * size + place) for place in range(size))


def test_epochs_differ():
    order = TaskOrder(50, seed=0)
    assert [order.index(p) for p in range(50)] != [order.index(p) for p in range(50, 100)]


def test_seeds_differ():
    assert [TaskOrder(50, 0).index(p) for p in range(50)] != [TaskOrder(50, 1).index(p) for p in range(50)]


def test_the_order_never_changes_between_versions():
    assert [6, 4, 5, 7, 3, 2, 0, 1, 9, 8] == [TaskOrder(10, seed=0).index(p) for p in range(10)]


def test_a_late_position_needs_no_walk_from_the_start():
    order = TaskOrder(10**9, seed=0)
    assert order.index(5 * 10**12 + 17) == order.index(5 * 10**12 + 17)


@pytest.mark.parametrize("size", [3, 4, 6])
def test_every_task_is_as_likely_at_every_place(size):
    epochs = 3000
    counts = Counter((place, permute(place, size, (0, epoch))) for epoch in range(epochs) for place in range(size))
    expected = epochs / size
    chi_square = sum((counts[p, i] - expected) ** 2 / expected for p in range(size) for i in range(size))
    assert chi_square < 4 * size * size


def test_small_sizes_reach_every_permutation():
    seen = Counter(tuple(permute(place, 4, (0, epoch)) for place in range(4)) for epoch in range(2400))
    assert 24 == len(seen)
    assert max(seen.values()) < 200


def test_epoch_counts_whole_rounds():
    order = TaskOrder(10, seed=0)
    assert [0, 0, 1, 2] == [order.epoch(position) for position in (0, 9, 10, 29)]


def test_an_order_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one task; got size 0"):
        TaskOrder(0, seed=0)


def test_a_negative_position_is_refused():
    with pytest.raises(ValueError, match="got -1"):
        TaskOrder(3, seed=0).index(-1)


def test_rollout_seeds_of_a_group_that_is_issued_again_are_the_same():
    assert TaskOrder(7, seed=5).rollout_seed(3, 2) == rollout_seed(5, 3, 2)


def test_rollout_seeds_have_63_bits_and_differ():
    seeds = {TaskOrder(7, seed=s).rollout_seed(p, i) for s in range(3) for p in range(20) for i in range(8)}
    assert 480 == len(seeds)
    assert 0 <= min(seeds) < max(seeds) < 2**63


def test_the_hash_never_changes_between_versions():
    digest = blake2b(b"str:rollout\x1fint:0\x1fint:1\x1fint:2", digest_size=8).hexdigest()
    assert int(digest, 16) // 2 == stable_hash("rollout", 0, 1, 2)


def test_the_hash_tells_numbers_from_texts_and_one_part_from_two():
    assert 4 == len({stable_hash(1, 2), stable_hash("1", 2), stable_hash(12), stable_hash("1\x1f2")})
