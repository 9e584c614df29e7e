"""Mixtures keep exact shares and need nothing but the position."""

from collections import Counter

import pytest

from posttrain.errors import ConfigError
from posttrain.tasks.mixing import Mixture
from posttrain.tasks.source import task_set


def build(*sizes: int):
    return [
        task_set([f"{letter} {n}" for n in range(size)], name=letter)
        for letter, size in zip("abc", sizes, strict=False)
    ]


def shares(mixture: Mixture, positions: range) -> dict[int, int]:
    return dict(Counter(mixture.locate(position)[0] for position in positions))


def test_shares_are_exact():
    assert {0: 500, 1: 300, 2: 200} == shares(Mixture(build(7, 5, 3), [5, 3, 2], seed=0), range(1000))


def test_decimal_weights_are_exact_too():
    assert {0: 100, 1: 200, 2: 700} == shares(Mixture(build(7, 5, 3), [0.1, 0.2, 0.7], seed=0), range(1000))


def test_every_window_is_close_to_the_shares():
    mixture = Mixture(build(7, 5), [3, 1], seed=0)
    assert {6} == {shares(mixture, range(start, start + 8))[0] for start in range(50)}


def test_each_source_is_issued_in_whole_epochs():
    mixture = Mixture(build(4, 6), [1, 1], seed=0)
    places = [mixture.locate(position) for position in range(24)]
    assert {3} == {count for (source, _), count in Counter(places).items() if source == 0}
    assert {2} == {count for (source, _), count in Counter(places).items() if source == 1}


def test_one_source_alone():
    mixture = Mixture(build(4), [2.5], seed=0)
    assert [0, 1, 2, 3] == sorted(mixture.locate(position)[1] for position in range(4))


def test_a_position_is_always_the_same_task():
    one, other = (Mixture(build(7, 5, 3), [1, 2, 3], seed=4) for _ in range(2))
    assert [one.task(p).id for p in range(30)] == [other.task(p).id for p in reversed(range(30))][::-1]


def test_the_task_is_the_located_one():
    mixture = Mixture(build(7, 5), [1, 1], seed=0)
    source, index = mixture.locate(11)
    assert mixture.sources[source][index] == mixture.task(11)


def test_seeds_give_other_orders_with_the_same_shares():
    one, other = (Mixture(build(70, 50), [1, 1], seed=seed) for seed in (0, 1))
    assert [one.locate(p)[0] for p in range(20)] == [other.locate(p)[0] for p in range(20)]
    assert [one.locate(p)[1] for p in range(20)] != [other.locate(p)[1] for p in range(20)]


def test_rollout_seeds_differ_by_index():
    mixture = Mixture(build(7), [1], seed=0)
    assert mixture.rollout_seed(3, 0) != mixture.rollout_seed(3, 1)


def test_digest_changes_with_the_weights():
    assert Mixture(build(7, 5), [1, 1], seed=0).digest != Mixture(build(7, 5), [1, 2], seed=0).digest


def test_name_lists_the_sources():
    assert "a + b" == Mixture(build(7, 5), [1, 1], seed=0).name


@pytest.mark.parametrize("weights", [[1, 0], [1, -1], [1, float("nan")], [1, float("inf")]])
def test_weights_must_be_finite_and_above_zero(weights):
    with pytest.raises(ConfigError, match="finite and above zero"):
        Mixture(build(7, 5), weights, seed=0)


@pytest.mark.parametrize("weights", [[], [1], [1, 2, 3]])
def test_one_weight_per_source(weights):
    with pytest.raises(ConfigError, match="one weight per source; got 2"):
        Mixture(build(7, 5), weights, seed=0)


def test_no_source():
    with pytest.raises(ConfigError, match="got 0 and 0"):
        Mixture([], [], seed=0)
