"""Rollouts come back from parquet as they were."""

import errno
import math
from dataclasses import replace

import numpy as np
import pandas
import pytest

from posttrain.errors import RecordError
from posttrain.records.rollout_store import RolloutStore
from posttrain.types import Ending, Group, Outcome, Score
from tests.records.examples import TASK, build_group, build_rollout, build_sample, build_segment


@pytest.fixture
def store(tmp_path):
    return RolloutStore(tmp_path / "rollouts")


def comparable(group):
    """The group with NaN, which equals nothing, written as text."""
    return repr(group)


def write_one(store, **changes):
    rollout = build_rollout(**changes)
    store.write(1, [Group(position=0, task=TASK, rollouts=(rollout,))])
    return store.read(1)[0].rollouts[0]


def test_groups_come_back_as_they_were(store):
    expected = [build_group(4, failed=2), build_group(9, rewards=(0.1 + 0.2,))]
    store.write(7, expected)
    assert [comparable(group) for group in expected] == [comparable(group) for group in store.read(7)]


def test_file_is_named_by_its_step(store, tmp_path):
    assert tmp_path / "rollouts" / "step-000123.parquet" == store.write(123, [build_group()])


def test_logprobs_come_back_bit_for_bit(store):
    segment = replace(build_segment(), rollout_logprobs=(math.nan, math.nan, -1 / 3, -5e-324))
    assert (-1 / 3, -5e-324) == write_one(store, segments=(segment,)).segments[0].rollout_logprobs[2:]


def test_several_segments_come_back(store):
    segments = (build_segment((1, 2, 3)), build_segment((4, 5, 6, 7), prompt_length=3))
    assert [s.ids for s in segments] == [s.ids for s in write_one(store, segments=segments).segments]


def test_large_seed_comes_back(store):
    assert 2**64 - 1 == write_one(store, seed=2**64 - 1).seed


def test_rollout_without_reward_comes_back(store):
    score = Score(name="exact", value=None, outcome=Outcome.TIMEOUT, detail="5 s")
    rollout = write_one(store, reward=None, scores=(score,), ending=Ending.LENGTH)
    assert (None, (score,), Ending.LENGTH) == (rollout.reward, rollout.scores, rollout.ending)


def test_tool_calls_in_messages_come_back(store):
    messages = ({"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},)
    assert messages == write_one(store, messages=messages).messages


def test_numpy_columns_of_a_task_become_plain(store):
    task = replace(TASK, columns={"n": np.int64(3), "x": np.array([1.0, math.nan])})
    assert {"n": 3, "x": [1.0, None]} == write_one(store, task=task).task.columns


def test_text_no_file_can_hold_is_escaped(store):
    assert r"a\udc80" == write_one(store, text="a\udc80").text


def test_advantages_and_logprobs_of_training_come_back(store):
    group = build_group(2, rewards=(1.0,))
    segment = group.rollouts[0].segments[0]
    old, ref = np.array([9.0, 9, -0.5, -0.25]), np.array([9.0, 9, -1, -2])
    store.write(1, [group], [build_sample(2, 0, segment, old_logprobs=old, ref_logprobs=ref)])
    columns = store.read_token_columns(1)[(2, 0)][0]
    np.testing.assert_array_equal([np.nan, np.nan, 0.5, 0.5], columns.advantages)
    np.testing.assert_array_equal([np.nan, np.nan, -0.5, -0.25], columns.old_logprobs)
    np.testing.assert_array_equal([np.nan, np.nan, -1, -2], columns.ref_logprobs)


def test_what_was_not_computed_is_none(store):
    group = build_group(2, rewards=(1.0,))
    store.write(1, [group], [build_sample(2, 0, group.rollouts[0].segments[0])])
    assert store.read_token_columns(1)[(2, 0)][0].old_logprobs is None


def test_rollout_that_did_not_train_has_no_advantage(store):
    store.write(1, [build_group(2, rewards=(1.0,))])
    assert store.read_token_columns(1)[(2, 0)][0].advantages is None


def test_samples_find_their_segment(store):
    segments = (build_segment((1, 2, 3)), build_segment((4, 5, 6)))
    group = Group(position=0, task=TASK, rollouts=(build_rollout(segments=segments),))
    second = build_sample(0, 0, segments[1], advantages=np.array([0.0, 0.0, -2.0]))
    store.write(1, [group], [second])
    columns = store.read_token_columns(1)[(0, 0)]
    assert columns[0].advantages is None
    assert -2.0 == columns[1].advantages[2]


def test_masked_places_may_hold_nan(store):
    group = build_group(0, rewards=(1.0,))
    advantages = np.array([np.nan, np.nan, 1.0, 3.0])
    path = store.write(1, [group], [build_sample(0, 0, group.rollouts[0].segments[0], advantages=advantages)])
    assert [2.0] == pandas.read_parquet(path)["advantage"].tolist()


def test_pandas_reads_plain_columns(store):
    table = pandas.read_parquet(store.write(3, [build_group(5)]))
    expected = [[3, 5, "sum-1", 0, 1.0, "stop", 2], [3, 5, "sum-1", 1, 0.0, "stop", 2]]
    names = ["step", "position", "task_id", "index", "reward", "ending", "sampled_tokens"]
    assert expected == table[names].to_numpy().tolist()


def test_step_without_groups_makes_an_empty_file(store):
    store.write(1, [])
    assert () == store.read(1)


def test_steps_are_listed(store):
    for step in (2, 1_000_000, 10):
        store.write(step, [build_group()])
    assert [2, 10, 1_000_000] == store.steps()


def test_writing_again_replaces(store):
    store.write(1, [build_group(0)])
    store.write(1, [build_group(1)])
    assert [1] == [group.position for group in store.read(1)]


def test_absent_step_says_what_is_stored(store):
    store.write(2, [build_group()])
    store.write(4, [build_group()])
    with pytest.raises(RecordError, match=r"rollouts of step 3 are not stored.*2 steps from 2 to 4"):
        store.read(3)


def test_damaged_file_is_named(store):
    store.write(1, [build_group()]).write_bytes(b"PAR1 no more")
    with pytest.raises(RecordError, match=r"step-000001.parquet is damaged"):
        store.read(1)


def test_cut_back_removes_later_steps_and_half_files(store):
    for step in (1, 2, 3):
        store.write(step, [build_group()])
    (store.folder / ".tmp-step-000004.parquet").write_bytes(b"half")
    assert 2 == store.cut_back(1)
    assert [store.path(1)] == list(store.folder.iterdir())


def test_cut_back_before_anything_was_stored(store):
    assert 0 == store.cut_back(0)


def test_full_disk_leaves_the_old_file(store, monkeypatch):
    store.write(1, [build_group(0)])

    def fail(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(RecordError, match=r"writing step-000001.parquet: the disk .* is full"):
        store.write(1, [build_group(1)])
    assert [0] == [group.position for group in store.read(1)]
    assert [store.path(1)] == list(store.folder.iterdir())


def test_scores_by_turn_and_by_step_come_back(store):
    steps = Score(name="prm", value=0.5, outcome=Outcome.SCORED, steps=((0, 0.25), (1, 0.75)))
    rollout = write_one(store, turn_scores=({"gold": 1.0}, {}), scores=(steps,))
    assert (({"gold": 1.0}, {}), (steps,)) == (rollout.turn_scores, rollout.scores)
