"""The packaged batch is whole and consistent; a run's step gives what it stored and says what it did not."""

from importlib.resources import files

import numpy as np
import pytest

from posttrain.batches.build import build_samples
from posttrain.compare.stored import NUMBERS, packaged, run_step
from posttrain.errors import RecordError
from posttrain.records.run_directory import RunDirectory
from tests.algorithms.examples import group
from tests.toy_runs import build_recipe

BATCH = packaged()


@pytest.fixture
def run(tmp_path):
    """A run with one stored step, with or without the learner's own log-probabilities."""

    def make(**columns):
        groups = [group([1.0, 0.0])]
        samples = build_samples(groups, [[np.asarray(1.0), np.asarray(-1.0)]])
        for sample in samples:
            for name, value in columns.items():
                object.__setattr__(sample, name, np.full(len(sample), value))
        recipe = build_recipe("grpo", rewards=[{"type": "exact"}])
        with RunDirectory.create(tmp_path / "run", recipe, {}) as directory:
            directory.rollouts.write(3, groups, samples)
        return tmp_path / "run"

    return make


def test_the_packaged_batch_is_small():
    folder = files("posttrain.compare") / "stored"
    assert sum(len(entry.read_bytes()) for entry in folder.iterdir()) < 200_000


def test_the_packaged_batch_has_eight_groups_of_eight_and_one_that_is_equal():
    assert [8] * 8 == [len(group.rollouts) for group in BATCH.groups]
    assert 1 == sum(len(set(group.rewards)) == 1 for group in BATCH.groups)


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_is_known_exactly_where_a_token_was_sampled(name):
    for one in BATCH.groups:
        for rollout in one.rollouts:
            (row,) = BATCH.numbers[name][(one.position, rollout.index)]
            assert list(rollout.segments[0].loss_mask) == np.isfinite(row).tolist()


def test_what_the_engine_said_is_what_the_learner_says():
    for one in BATCH.groups:
        for rollout in one.rollouts:
            mask = np.array(rollout.segments[0].loss_mask)
            row = BATCH.numbers["old_logprobs"][(one.position, rollout.index)][0]
            assert np.allclose(np.array(rollout.segments[0].rollout_logprobs)[mask], row[mask], atol=1e-4)


def test_every_group_has_its_greedy_rollout():
    assert all(one.greedy is not None and one.greedy.task.id == one.task.id for one in BATCH.groups)


def test_every_token_has_its_text():
    count = sum(rollout.sampled_count for one in BATCH.groups for rollout in one.rollouts)
    assert count == len(BATCH.pieces)


def test_the_policy_has_moved_and_the_first_step_has_not():
    assert (True, False) == (BATCH.moved, BATCH.first_step().moved)


def test_a_run_s_step_has_the_stored_log_probabilities(run):
    batch = run_step(run(old_logprobs=-2.0, ref_logprobs=-3.0), 3)
    assert batch.has("ref_logprobs")
    assert not batch.moved
    (row,) = batch.numbers["logprobs"][(0, 1)]
    assert [-2.0, -2.0] == row[1:].tolist()


def test_without_them_the_engine_s_own_stand_in_and_it_is_said(run):
    batch = run_step(run(), 3)
    assert not batch.has("ref_logprobs")
    assert any("engine's own" in note and "2 rollouts" in note for note in batch.notes)
    (row,) = batch.numbers["logprobs"][(0, 0)]
    assert [-1.0, -1.0] == row[1:].tolist()


def test_a_step_that_was_not_stored_is_refused(run):
    with pytest.raises(RecordError, match="step 4 are not stored"):
        run_step(run(), 4)


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(RecordError, match="is not a run directory"):
        run_step(tmp_path, 1)
