"""The counter-based generator: known words, equal shares, independence of neighbours, no state."""

import math

import pytest
import torch

from posttrain.functional.counter import mix64, uniform

INCREMENT = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1


def mix_in_plain_integers(word):
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def uniform_in_plain_integers(seed, position):
    key = mix_in_plain_integers((seed + INCREMENT) & MASK)
    word = mix_in_plain_integers((key + (position + 1) * INCREMENT) & MASK)
    return ((word >> 12) + 0.5) / 2**52


def unsigned(tensor):
    return [value & MASK for value in tensor.tolist()]


def grid(seeds, positions):
    return uniform(torch.arange(seeds).unsqueeze(1), torch.arange(positions).unsqueeze(0))


def test_the_finaliser_gives_the_published_splitmix64_sequence():
    # First five outputs of splitmix64 for seed 1234567, as in the reference implementation's test vectors.
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    states = [(1234567 + (step + 1) * INCREMENT) & MASK for step in range(5)]
    words = torch.tensor([state - (1 << 64) if state >> 63 else state for state in states])
    assert published == unsigned(mix64(words))


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (0, 1), (1, 0), (123456789, 4096), (-1, 7), (2**62, 2**40)])
def test_it_equals_arithmetic_in_plain_integers(seed, position):
    expected = uniform_in_plain_integers(seed & MASK, position)
    assert expected == uniform(torch.tensor([seed]), torch.tensor([position])).item()


def test_the_numbers_are_fixed_for_ever():
    draws = uniform(torch.tensor([0, 0, 7]), torch.tensor([0, 1, 100]))
    assert [0.6524484863740322, 0.7012121095215252, 0.917532811404855] == draws.tolist()


def test_zero_and_one_are_never_drawn():
    lowest, highest = 0.5 * 2.0**-52, ((1 << 52) - 0.5) * 2.0**-52
    assert 0 < lowest
    assert highest < 1
    draws = grid(300, 300)
    assert 0 < draws.min()
    assert draws.max() < 1


def test_draws_are_float64():
    assert torch.float64 == uniform(torch.tensor([1]), torch.tensor([1])).dtype


def test_mean_and_variance_are_those_of_a_uniform():
    draws = grid(500, 500)
    assert pytest.approx(0.5, abs=5 * math.sqrt(1 / 12 / draws.numel())) == draws.mean().item()
    assert pytest.approx(1 / 12, rel=0.01) == draws.var().item()


def test_every_bin_gets_its_share():
    draws = grid(400, 400).flatten()
    counts = torch.histc(draws, bins=100, min=0, max=1)
    chi_squared = ((counts - draws.numel() / 100) ** 2 / (draws.numel() / 100)).sum().item()
    # 99 degrees of freedom: mean 99, standard deviation 14.
    assert abs(chi_squared - 99) < 5 * 14


@pytest.mark.parametrize("dimension", [0, 1], ids=["neighbouring seeds", "neighbouring positions"])
def test_neighbours_are_uncorrelated(dimension):
    draws = grid(400, 400) - 0.5
    first, second = draws.narrow(dimension, 0, 399), draws.narrow(dimension, 1, 399)
    correlation = (first * second).mean().item() * 12
    assert abs(correlation) < 5 / math.sqrt(first.numel())


def test_seed_and_position_are_not_interchangeable():
    draws = grid(50, 50)
    assert not torch.equal(draws, draws.T)
    assert 2500 == len(draws.unique())


def test_a_draw_does_not_depend_on_what_is_drawn_beside_it():
    alone = uniform(torch.tensor([5]), torch.tensor([9]))
    together = uniform(torch.tensor([1, 5, 3]), torch.tensor([9, 9, 2]))
    assert alone.item() == together[1].item()


def test_the_global_generator_is_neither_read_nor_moved():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = uniform(torch.tensor([3]), torch.tensor([4]))
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    assert torch.equal(first, uniform(torch.tensor([3]), torch.tensor([4])))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a second device")
def test_every_device_draws_the_same():
    seeds, positions = torch.arange(100), torch.arange(100) * 7
    assert torch.equal(uniform(seeds, positions), uniform(seeds.cuda(), positions.cuda()).cpu())


def test_other_number_types_are_refused():
    with pytest.raises(TypeError, match="int64"):
        uniform(torch.tensor([1.0]), torch.tensor([1]))
