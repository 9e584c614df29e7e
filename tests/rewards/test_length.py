"""The soft punishment by hand and as the paper states it."""

import asyncio

import pytest

from posttrain.config import validate
from posttrain.errors import ConfigError
from posttrain.rewards.length import Config, Length
from tests.rewards.rollouts import make_rollout, make_task


def value(sampled, **options):
    reward = Length(Config(**({"start": 100, "end": 200} | options)))
    return asyncio.run(reward.score([make_rollout("", sampled=sampled)], make_task()))[0].value


@pytest.mark.parametrize(("sampled", "expected"), [(0, 0.0), (100, 0.0), (150, -0.5), (200, -1.0), (1000, -1.0)])
def test_linear_between_start_and_end_and_capped(sampled, expected):
    assert expected == value(sampled)


def test_penalty_scales():
    assert -0.125 == value(150, penalty=0.25)


def test_no_penalty_is_plain_zero():
    assert "0.0" == str(value(10))


def test_dapo_soft_punishment_of_the_paper():
    """L_max 20480, L_cache 4096: at 18432 tokens, half of the cache, half of the punishment."""
    assert -0.5 == value(18432, start=16384, end=20480)


def test_order_is_validated():
    with pytest.raises(ConfigError, match="start must be below end"):
        validate(Config, {"start": 5, "end": 5}, where="rewards 'length'")
