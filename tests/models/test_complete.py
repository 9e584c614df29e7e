"""A folder counts as whole only if its marker says so."""

import json

import pytest

from posttrain.models.complete import MARKER, find_damage, seal, sync_tree


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_bytes(b"abc")
    (tmp_path / "state").write_text("1")
    sync_tree(tmp_path)
    seal(tmp_path)
    return tmp_path


def test_sealed_folder_is_whole(folder):
    assert find_damage(folder) is None


def test_marker_names_sizes_and_digests(folder):
    entry = json.loads((folder / MARKER).read_text())["files"]["model/weights"]
    assert 3 == entry["bytes"]
    assert "ba7816bf" == entry["sha256"][:8]


def test_folder_without_marker_is_interrupted(folder):
    (folder / MARKER).unlink()
    assert "interrupted" in find_damage(folder)


def test_absent_folder_is_not_whole(tmp_path):
    assert find_damage(tmp_path / "absent") is not None


def test_torn_marker_is_reported(folder):
    (folder / MARKER).write_text('{"files": {"mo')
    assert "cannot be read" in find_damage(folder)


@pytest.mark.parametrize("text", ["[]", "{}", '{"files": 3}', '{"files": {"a": 1}}'])
def test_strange_marker_is_reported(folder, text):
    (folder / MARKER).write_text(text)
    assert "not the expected table" in find_damage(folder)


def test_missing_file_is_reported(folder):
    (folder / "state").unlink()
    assert "state is missing" == find_damage(folder)


def test_short_file_is_reported(folder):
    (folder / "model" / "weights").write_bytes(b"ab")
    assert "model/weights has 2 bytes instead of 3" == find_damage(folder, digests=False)


def test_changed_byte_is_found_by_the_digest_only(folder):
    (folder / "model" / "weights").write_bytes(b"abd")
    assert find_damage(folder, digests=False) is None
    assert "model/weights is damaged" in find_damage(folder)


def test_sealing_again_takes_the_new_content(folder):
    (folder / "state").write_text("22")
    seal(folder)
    assert find_damage(folder) is None
