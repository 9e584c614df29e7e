"""Punishing and masking answers that ran out of room."""

import pytest
import torch

from posttrain.functional.groups import centred, standardised
from posttrain.functional.overlong import among, soft_punishment, stop_properly, untrained
from posttrain.functional.reduce import token_weights
from tests.golden.fixtures import f64

TRUNCATED = torch.tensor([False, True, False, False])


def punish(*lengths: int, **options) -> list[float]:
    return soft_punishment(torch.tensor(lengths), **({"limit": 100, "buffer": 20} | options)).tolist()


def test_it_is_linear_inside_the_buffer():
    assert [0.0, 0.0, -0.25, -1.0, -1.0] == punish(0, 80, 85, 100, 500)


def test_factor_scales_and_caps():
    assert [-0.125, -0.5] == punish(85, 500, factor=0.5)


def test_uncapped_goes_on():
    assert [-2.0] == punish(120, capped=False)


@pytest.mark.parametrize("buffer", [0, -5, 101])
def test_a_senseless_buffer_is_refused(buffer):
    with pytest.raises(ValueError, match="buffer"):
        punish(10, buffer=buffer)


def test_stop_properly_lowers_truncated_rewards_only():
    assert [1.0, 0.5, -1.0] == stop_properly(
        f64([1, 1, -1]), torch.tensor([False, True, False]), coefficient=0.5
    ).tolist()


def test_stop_properly_does_not_comfort_a_bad_answer():
    assert [-1.0] == stop_properly(f64([-1]), torch.tensor([True]), coefficient=0.5).tolist()


def test_in_the_statistics_the_truncated_one_moves_the_mean():
    rewards = f64([1, 0, 1, 0])
    assert centred(rewards).tolist() != among(centred, rewards, ~TRUNCATED).tolist()


def test_out_of_the_statistics_the_others_are_compared_among_themselves():
    actual = among(centred, f64([1, 0, 1, 0]), ~TRUNCATED)
    assert [1 / 3, 0.0, 1 / 3, -2 / 3] == pytest.approx(actual.tolist())


def test_one_counted_rollout_moves_nothing():
    assert [0.0, 0.0] == among(standardised, f64([1, 0]), torch.tensor([True, False])).tolist()


def test_masked_rows_do_not_count_in_the_reduction():
    weights = token_weights("token-mean", untrained(TRUNCATED, torch.tensor([4, 100, 3, 2])))
    assert 1 / 9 == pytest.approx(float(weights[0]))
