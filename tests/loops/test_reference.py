"""Reference log-probabilities by content: found again, completed, exact on disk, refused if damaged."""

from dataclasses import replace

import numpy as np
import pytest

from posttrain.errors import RecordError
from posttrain.loops.reference import attach, read_references, row_key, write_references
from tests.test_pairing import sample
from tests.tiny_vision import picture, seen


def bare(**options):
    return replace(sample(**options), ref_logprobs=None)


def test_a_known_row_gets_its_numbers_where_it_trains():
    row = bare()
    (found,) = attach([row], {row_key(row): np.array([-0.25, -0.5])})
    assert [-0.25, -0.5] == found.ref_logprobs[found.loss_mask].tolist()
    assert np.isnan(found.ref_logprobs[0])


def test_an_unknown_row_is_left_to_the_learner():
    row, other = bare(), bare(trained=3)
    found = attach([row, other], {row_key(row): np.array([-1.0, -1.0])})
    assert [False, True] == [one.ref_logprobs is None for one in found]


def test_nothing_known_changes_nothing():
    row = bare()
    assert attach([row], {})[0] is row


def test_the_key_is_what_the_reference_reads():
    row = bare()
    assert row_key(row) == row_key(replace(row, group=9, rollout=3, reward=0.0, advantages=row.advantages * 2))


@pytest.mark.parametrize(
    "change",
    [
        {"ids": np.array([0, 1, 3])},
        {"loss_mask": np.array([False, False, True])},
        {"images": {"pixel_values": picture()}},
    ],
)
def test_another_row_has_another_key(change):
    assert row_key(bare()) != row_key(replace(bare(), **change))


def test_pictures_belong_to_the_row():
    one, other = (seen([5], [7], images={"pixel_values": picture(seed)}) for seed in (1, 2))
    assert row_key(one) != row_key(other)


def test_the_file_keeps_every_bit(tmp_path):
    values = {"a": np.array([-0.1, -1e-300, -1 / 3]), "b": np.zeros(0)}
    write_references(tmp_path / "file.parquet", values)
    found = read_references(tmp_path / "file.parquet")
    assert {key: row.tolist() for key, row in values.items()} == {key: row.tolist() for key, row in found.items()}


def test_the_same_rows_make_the_same_file(tmp_path):
    rows = {"a": np.array([-1.0]), "b": np.array([-2.0])}
    for name, keys in (("one", "ab"), ("other", "ba")):
        write_references(tmp_path / name, {key: rows[key] for key in keys})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_no_file_is_nothing_known(tmp_path):
    assert {} == read_references(tmp_path / "none.parquet")


def test_a_damaged_file_says_what_to_do(tmp_path):
    (tmp_path / "file.parquet").write_bytes(b"half")
    with pytest.raises(RecordError, match="Remove it"):
        read_references(tmp_path / "file.parquet")
