"""Several reward models as one: every combination, one scale, and the disagreement on record."""

import asyncio

import numpy as np
import pytest

from posttrain.config import validate
from posttrain.errors import ConfigError
from posttrain.rewards.ensemble import Config, Ensemble
from posttrain.rewards.reward_model import Config as OneConfig
from posttrain.rewards.reward_model import RewardModelReward
from tests.rewards.judges import judge_folder, written

ROLLOUTS = [written("2", index=0), written("34", index=1), written("5+5", index=2)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return [judge_folder(tmp_path_factory.mktemp(f"judge{i}"), seed=i, scale=s) for i, s in enumerate((1, 0.1, 2))]


@pytest.fixture(scope="module")
def raw(folders):
    """Each member's own scores, [members, rollouts]."""
    rewards = [RewardModelReward(OneConfig(path=folder, device="cpu")) for folder in folders]
    return np.array([[s.value for s in asyncio.run(reward.score(ROLLOUTS, None))] for reward in rewards])


def scores(folders, **settings):
    return asyncio.run(Ensemble(Config(paths=folders, device="cpu", **settings)).score(ROLLOUTS, None))


def values(folders, **settings):
    return [score.value for score in scores(folders, **settings)]


@pytest.mark.parametrize(
    ("how", "combined"),
    [
        ("mean", lambda m: m.mean(0)),
        ("worst", lambda m: m.min(0)),
        ("uncertainty_weighted", lambda m: m.mean(0) - 0.5 * m.var(0)),
        ("mean_minus_deviation", lambda m: m.mean(0) - 0.5 * m.std(0)),
    ],
)
def test_every_combination(folders, raw, how, combined):
    assert pytest.approx(combined(raw), abs=1e-6) == values(folders, combine=how)


def test_members_are_put_on_one_scale_first(folders, raw):
    centres, spreads = (0.1, 0.2, 0.3), (1.0, 0.1, 2.0)
    scaled = (raw - np.array(centres)[:, None]) / np.array(spreads)[:, None]
    assert pytest.approx(scaled.min(0), abs=1e-6) == values(folders, centres=centres, spreads=spreads)


def test_degrees_of_freedom(folders, raw):
    expected = raw.mean(0) - 0.3 * raw.var(0, ddof=1)
    assert pytest.approx(expected, abs=1e-6) == values(folders, combine="uncertainty_weighted", coefficient=0.3, ddof=1)


def test_the_disagreement_is_on_record(folders, raw):
    assert [f"members differ by {far:.4f}" for far in raw.std(0)] == [score.detail for score in scores(folders)]


def test_no_rollouts_no_scores(folders):
    assert [] == asyncio.run(Ensemble(Config(paths=folders)).score([], None))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"paths": ["one"]}, "at least 2"),
        ({"paths": ["one", "two"], "centres": [1.0]}, "1 numbers for 2 members"),
        ({"paths": ["one", "two"], "spreads": [1.0, 0.0]}, "above 0"),
        ({"paths": ["one", "two"], "combine": "best"}, "combine"),
    ],
)
def test_what_cannot_be_combined_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        validate(Config, settings, where="test")


def test_every_member_must_be_a_reward_model(folders, tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        Ensemble(Config(paths=(*folders, str(tmp_path / "nothing"))))
