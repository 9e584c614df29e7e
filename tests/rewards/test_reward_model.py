"""A trained reward model as a reward: what it reads, in which batches, and what it refuses."""

import asyncio
import shutil
from pathlib import Path

import pytest

from posttrain.config import validate
from posttrain.errors import ConfigError, ModelError
from posttrain.models.judge import load_judge
from posttrain.rewards.reward_model import Config, RewardModelReward
from posttrain.types import Outcome
from tests.rewards.judges import expected, judge_folder, sampled, toy, written


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return judge_folder(tmp_path_factory.mktemp("judge"))


def values(folder, rollouts, **settings):
    reward = RewardModelReward(Config(path=folder, device="cpu", **settings))
    scores = asyncio.run(reward.score(rollouts, rollouts[0].task if rollouts else None))
    assert {Outcome.SCORED} >= {score.outcome for score in scores}
    return [score.value for score in scores]


def test_the_score_is_read_at_the_last_sampled_token(folder):
    one = written("2")
    assert pytest.approx(expected(Path(folder), sampled(one)), abs=1e-5) == values(folder, [one])[0]


def test_what_follows_the_last_sampled_token_is_not_read(folder):
    plain, longer = written("2"), written("2", after=(9, 10, 11))
    assert values(folder, [plain]) == values(folder, [longer])


def test_padding_is_not_read(folder):
    rollouts = [written("2"), written("2" * 30, index=1)]
    assert pytest.approx(values(folder, rollouts[:1])[0], abs=1e-5) == values(folder, rollouts)[0]


def test_scores_come_in_the_order_of_the_rollouts(folder):
    rollouts = [written("2" * count, index=place) for place, count in enumerate((1, 9, 4, 6))]
    one_by_one = [values(folder, [one])[0] for one in rollouts]
    assert pytest.approx(one_by_one, abs=1e-5) == values(folder, rollouts)


@pytest.mark.parametrize("budget", [1, 20, 10_000])
def test_batches_change_no_score(folder, budget):
    rollouts = [written("3" * count, index=place) for place, count in enumerate((1, 9, 4))]
    assert pytest.approx(values(folder, rollouts), abs=1e-5) == values(folder, rollouts, tokens_per_batch=budget)


def test_equal_calls_give_equal_bits(folder):
    rollouts = [written("2", index=0), written("234", index=1)]
    assert values(folder, rollouts) == values(folder, rollouts)


def test_a_cut_off_answer_is_judged_as_cut_off(folder):
    assert values(folder, [written("2")]) != values(folder, [written("2", closed=False)])


def test_shift_and_scale(folder):
    one = written("2")
    (raw,) = values(folder, [one])
    assert pytest.approx([2 * (raw - 0.5)]) == values(folder, [one], shift=0.5, scale=2.0)


def test_a_model_is_loaded_once(folder):
    values(folder, [written("2")])
    before = load_judge.cache_info().misses
    values(folder, [written("3")])
    assert before == load_judge.cache_info().misses


def test_no_rollouts_no_scores(folder):
    assert [] == values(folder, [])


def test_a_folder_without_a_head_is_refused_before_a_weight_is_read(tmp_path):
    toy()[0].config.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"has no value_head\.safetensors"):
        RewardModelReward(Config(path=str(tmp_path)))


def test_a_folder_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        RewardModelReward(Config(path=str(tmp_path / "nothing")))


def test_other_tokens_are_refused(folder):
    one = written("2")
    other = type(one)(**{name: getattr(one, name) for name in one.__slots__} | {"text": "something else"})
    with pytest.raises(ConfigError, match="the policy's tokenizer"):
        values(folder, [other])


def test_rows_beyond_the_window_are_refused(folder):
    with pytest.raises(ModelError, match="reads 1 to 64"):
        values(folder, [written("2" * 80)])


def test_a_torn_head_says_so(folder, tmp_path):
    torn = tmp_path / "torn"
    shutil.copytree(folder, torn)
    (torn / "value_head.safetensors").write_bytes(b"torn")
    with pytest.raises(ModelError, match="is not a head of this model"):
        values(str(torn), [written("2")])


def test_the_path_is_required():
    with pytest.raises(ConfigError, match="'path' is missing"):
        validate(Config, {}, where="test")
