"""Segments are read as views where they lie evenly, gathered where not, and written back to their places."""

import pytest
import torch

from posttrain.models.segments import Segments, bucket_segments

EVEN = [(1, 3), (5, 3), (9, 3)]
UNEVEN = [(0, 3), (4, 3), (9, 3)]
RAGGED = [(0, 4), (4, 2), (9, 1)]


def row(tokens=12):
    return torch.arange(tokens * 4, dtype=torch.float64).view(tokens, 2, 2)


@pytest.mark.parametrize("segments", [EVEN, UNEVEN, [(2, 5)]])
def test_reading_gives_the_tokens_of_each_segment(segments):
    expected = torch.stack([row()[start : start + length].transpose(0, 1) for start, length in segments])
    assert torch.equal(expected, Segments(segments, "cpu").read(row()))


def test_even_segments_are_a_view():
    whole = row()
    assert whole.untyped_storage().data_ptr() == Segments(EVEN, "cpu").read(whole).untyped_storage().data_ptr()


def test_a_view_of_a_view_reads_the_right_tokens():
    flipped = row().transpose(1, 2)
    expected = torch.stack([flipped[start : start + 3].transpose(0, 1) for start, _ in EVEN])
    assert torch.equal(expected, Segments(EVEN, "cpu").read(flipped))


def test_shorter_segments_are_filled_with_their_last_token():
    found = Segments(RAGGED, "cpu").read(row())
    assert [9, 9, 9, 9] == found[2, 0, :, 0].div(4).int().tolist()
    assert [4, 5, 5, 5] == found[1, 0, :, 0].div(4).int().tolist()


def test_no_gradient_is_read_at_filled_up_places():
    found = Segments(RAGGED, "cpu").read_gradient(torch.ones(12, 2, 2))
    assert [4.0, 2.0, 1.0] == found[:, 0, :, 0].sum(1).tolist()


@pytest.mark.parametrize("segments", [EVEN, UNEVEN, RAGGED])
def test_writing_back_what_was_read_restores_the_row(segments):
    part, target = Segments(segments, "cpu"), torch.zeros(12, 2, 2, dtype=torch.float64)
    part.write(target, part.read(row()))
    covered = [at for start, length in segments for at in range(start, start + length)]
    assert torch.equal(row()[covered], target[covered])
    assert 0.0 == float(target.sum() - row()[covered].sum())


@pytest.mark.parametrize("segments", [EVEN, UNEVEN])
def test_adding_keeps_what_is_there(segments):
    part, target = Segments(segments, "cpu"), row()
    part.add(target, part.read(row()))
    covered = [at for start, length in segments for at in range(start, start + length)]
    assert torch.equal(2 * row()[covered], target[covered])


def lengths_of(buckets):
    return [(bucket.count, bucket.length) for bucket in buckets]


def test_buckets_hold_about_equal_lengths():
    segments = [(0, 100), (100, 82), (182, 60), (242, 55), (297, 3)]
    assert [(2, 100), (2, 60), (1, 3)] == lengths_of(bucket_segments(segments, "cpu"))


def test_short_segments_go_together():
    assert [(3, 9)] == lengths_of(bucket_segments([(0, 1), (1, 9), (10, 4)], "cpu"))


def test_empty_segments_are_left_out():
    assert [(1, 2)] == lengths_of(bucket_segments([(0, 0), (0, 2)], "cpu"))
    assert [] == bucket_segments([], "cpu")
