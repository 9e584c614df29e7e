"""The flat batch of trained tokens holds the right numbers, and None where a number is not known for all."""

import numpy as np
import pytest
import torch

from posttrain.batches.pack import pack
from posttrain.models.attention import BlockPlan
from posttrain.models.rows import tensors, token_batch
from tests.models.samples import ragged_groups, sample


def batch_of(samples, dtype=torch.float64, layout="packed"):
    return token_batch(pack(samples, token_budget=10**6, layout=layout)[0], dtype=dtype, device="cpu")


def test_numbers_of_trained_tokens_sample_after_sample():
    found = batch_of([sample([5, 6], [7, 8]), sample([5], [7, 8, 9], mask=[True, False, True])])
    assert [0, 0, 1, 1] == found.samples.tolist()
    assert found.sample_count == 2
    assert [2.0, 3.0, 1.0, 3.0] == found.advantages.tolist()


def test_a_sample_that_trains_nothing_keeps_its_number():
    found = batch_of([sample([5], [6], mask=[False]), sample([5], [6])])
    assert [1] == found.samples.tolist()
    assert found.sample_count == 2


def test_every_weight_stream_is_taken():
    streams = {"policy": np.array([0.0, 0.25]), "kl": np.array([0.0, 0.5])}
    found = batch_of([sample([5], [6], token_weight=streams)])
    assert {"policy": [0.25], "kl": [0.5]} == {name: w.tolist() for name, w in found.token_weight.items()}


def test_a_stream_that_one_sample_lacks_is_left_out():
    extra = {"policy": np.zeros(2), "kl": np.zeros(2)}
    found = batch_of([sample([5], [6], token_weight=extra), sample([5], [6])])
    assert ["policy"] == list(found.token_weight)


@pytest.mark.parametrize("field", ["old_logprobs", "ref_logprobs", "teacher_logprobs"])
def test_optional_numbers_are_there_if_all_samples_have_them(field):
    rows = [sample([5], [6], **{field: np.array([np.nan, -2.0])}) for _ in range(2)]
    assert [-2.0, -2.0] == getattr(batch_of(rows), field).tolist()


@pytest.mark.parametrize("field", ["old_logprobs", "ref_logprobs", "teacher_logprobs"])
def test_optional_numbers_are_none_if_one_sample_lacks_them(field):
    rows = [sample([5], [6], **{field: np.array([np.nan, -2.0])}), sample([5], [6])]
    assert getattr(batch_of(rows), field) is None


def test_rollout_logprobs_are_none_if_nobody_sampled():
    assert batch_of([sample([5], [6], rollout_logprobs=np.full(2, np.nan))]).rollout_logprobs is None


def test_rollout_logprobs_keep_single_gaps():
    found = batch_of([sample([5], [6, 7], rollout_logprobs=np.array([np.nan, -1.0, np.nan]))])
    assert found.rollout_logprobs[0] == -1.0
    assert torch.isnan(found.rollout_logprobs[1])


def test_numbers_outside_the_mask_are_never_read():
    clean = sample([5, 6], [7, 8], mask=[True, False])
    dirt = np.where(clean.loss_mask, clean.advantages, np.nan)
    assert (
        batch_of([clean]).advantages.tolist()
        == batch_of([sample([5, 6], [7, 8], mask=[True, False], advantages=dirt)]).advantages.tolist()
    )


def test_dtype_is_the_one_asked_for():
    found = batch_of([sample([5], [6])], torch.float32)
    assert {torch.float32} == {found.advantages.dtype, found.rollout_logprobs.dtype, found.token_weight["policy"].dtype}


def test_turns_are_whole_numbers():
    found = batch_of([sample([5], [6, 7], turns=np.array([-1, 0, 1]))])
    assert [0, 1] == found.turns.tolist()
    assert found.turns.dtype == torch.int64


def test_no_trained_token_at_all():
    found = batch_of([sample([5], [6], mask=[False])])
    assert (0, 1) == (len(found.advantages), found.sample_count)


@pytest.mark.parametrize("layout", ["packed", "shared"])
def test_single_rows_come_with_a_plan(layout):
    microbatch = pack(ragged_groups(), token_budget=10**6, layout=layout)[0]
    rows = tensors(microbatch, "cpu")
    assert isinstance(rows.plan, BlockPlan)
    assert microbatch.token_count == rows.plan.width


def test_padded_rows_need_no_plan():
    microbatch = pack(ragged_groups(), token_budget=10**6, layout="padded")[0]
    rows = tensors(microbatch, "cpu")
    assert rows.plan is None
    assert microbatch.ids.shape == rows.ids.shape == rows.positions.shape
    assert {torch.int64} == {rows.ids.dtype, rows.positions.dtype, rows.sources.dtype, rows.targets.dtype}
