"""A checkpoint is whole or does not count, whatever kills its writer."""

import errno
import json
import subprocess
from contextlib import contextmanager

import numpy as np
import pytest
import safetensors.torch
import torch

from posttrain.errors import RecordError
from posttrain.models.complete import find_damage
from posttrain.models.locate import resolve_model_path
from posttrain.records import checkpoints
from posttrain.records.checkpoints import clean_leftovers, cut_back, newest_complete, prune, write_checkpoint


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "checkpoints"


def write(folder, step, *, content=b"weights", state=None):
    return write_checkpoint(
        folder, step, {"model": lambda place: (place / "weights").write_bytes(content)}, state or {"position": step}
    )


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def fail_with(error):
    def writer(place):
        (place / "half").write_bytes(b"half")
        raise error

    return {"model": writer}


def test_checkpoint_holds_folders_state_and_marker(folder):
    path = write(folder, 120)
    assert "step-000120" == path.name
    assert ["COMPLETE", "model", "state.json"] == names(path)
    assert b"weights" == (path / "model" / "weights").read_bytes()


def test_a_writer_may_fill_the_checkpoints_own_folder(folder):
    def fill(place):
        (place / "model").mkdir()
        (place / "optimizer").write_bytes(b"1")

    path = write_checkpoint(folder, 1, {".": fill, "model": lambda place: (place / "tokenizer").write_text("")}, {})
    assert ["COMPLETE", "model", "optimizer", "state.json"] == names(path)


def test_newest_is_found_with_its_state(folder):
    write(folder, 3)
    path = write(folder, 12, state={"position": 96, "seed": 1})
    found = newest_complete(folder)
    assert (path, 12, {"position": 96, "seed": 1}) == (
        found.checkpoint.path,
        found.checkpoint.step,
        found.checkpoint.state,
    )
    assert () == found.messages


def test_no_folder_has_no_checkpoint(folder):
    assert (None, ()) == (newest_complete(folder).checkpoint, newest_complete(folder).messages)


def test_changed_byte_falls_back_and_says_so(folder):
    write(folder, 1)
    (write(folder, 2) / "model" / "weights").write_bytes(b"weightz")
    found = newest_complete(folder)
    assert 1 == found.checkpoint.step
    assert (
        "Checkpoint step-000002 is passed over: model/weights is damaged: its SHA-256 is not the one written.",
    ) == (found.messages)


@pytest.mark.parametrize("spoil", ["short", "missing", "unmarked", "torn marker", "state"])
def test_every_damage_falls_back(folder, spoil):
    write(folder, 1)
    path = write(folder, 2)
    if spoil == "short":
        (path / "model" / "weights").write_bytes(b"w")
    elif spoil == "missing":
        (path / "model" / "weights").unlink()
    elif spoil == "unmarked":
        (path / "COMPLETE").unlink()
    elif spoil == "torn marker":
        (path / "COMPLETE").write_text('{"files"')
    else:
        (path / "state.json").write_text("{")
    found = newest_complete(folder)
    assert (1, 1) == (found.checkpoint.step, len(found.messages))


def test_all_damaged_finds_none_and_says_why(folder):
    for step in (1, 2):
        (write(folder, step) / "state.json").unlink()
    found = newest_complete(folder)
    assert (None, 2) == (found.checkpoint, len(found.messages))


def test_whole_checkpoint_of_the_step_is_kept(folder):
    write(folder, 1, content=b"first")
    assert b"first" == (write(folder, 1, content=b"again") / "model" / "weights").read_bytes()


def test_torn_checkpoint_of_the_step_is_replaced(folder):
    (write(folder, 1, content=b"first") / "COMPLETE").unlink()
    assert b"again" == (write(folder, 1, content=b"again") / "model" / "weights").read_bytes()
    assert find_damage(folder / "step-000001") is None


def test_large_step_numbers_sort_as_numbers(folder):
    write(folder, 999_999)
    write(folder, 1_000_000)
    assert 1_000_000 == newest_complete(folder).checkpoint.step


def test_model_floor_finds_the_same_checkpoint(folder):
    write(folder, 1)
    (write(folder, 2) / "COMPLETE").unlink()
    assert newest_complete(folder).checkpoint.path / "model" == resolve_model_path(folder.parent)


def test_prune_keeps_the_newest(folder):
    for step in (1, 2, 10):
        write(folder, step)
    assert [1] == prune(folder, 2)
    assert ["step-000002", "step-000010"] == names(folder)


def test_prune_does_not_count_torn_ones(folder):
    write(folder, 1)
    (write(folder, 2) / "COMPLETE").unlink()
    assert [] == prune(folder, 1)
    assert 1 == newest_complete(folder).checkpoint.step


def test_prune_to_nothing_is_refused(folder):
    with pytest.raises(ValueError, match="at least the newest"):
        prune(folder, 0)


def test_cut_back_removes_later_ones(folder):
    for step in (1, 2, 3):
        write(folder, step)
    assert [2, 3] == cut_back(folder, 1)
    assert ["step-000001"] == names(folder)


def test_leftovers_are_cleaned(folder):
    write(folder, 1)
    (write(folder, 2) / "COMPLETE").unlink()
    (folder / ".tmp-abc" / "model").mkdir(parents=True)
    assert {".tmp-abc", "step-000002"} == set(clean_leftovers(folder))
    assert ["step-000001"] == names(folder)


def test_cleaning_leaves_damaged_ones_to_the_search(folder):
    (write(folder, 1) / "model" / "weights").write_bytes(b"w")
    assert [] == clean_leftovers(folder)


def test_cleaning_an_absent_folder(folder):
    assert [] == clean_leftovers(folder)


@pytest.mark.parametrize("error", [ValueError("bug"), KeyboardInterrupt()])
def test_other_errors_pass_through_and_leave_nothing(folder, error):
    write(folder, 1)
    with pytest.raises(type(error)):
        write_checkpoint(folder, 2, fail_with(error), {})
    assert ["step-000001"] == names(folder)


def test_state_that_json_cannot_hold_writes_nothing(folder):
    with pytest.raises(TypeError):
        write_checkpoint(folder, 1, {}, {"generator": object()})
    assert not folder.exists()


def test_full_disk_says_the_need_and_what_is_intact(folder):
    write(folder, 100, content=b"x" * 3_000_000)
    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(RecordError, match=r"step 120 needs about 3.0 MB. The checkpoint step-000100 is intact"):
        write_checkpoint(folder, 120, fail_with(full), {})
    assert ["step-000100"] == names(folder)


def test_full_disk_without_earlier_checkpoint_says_so(folder):
    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(RecordError, match=r"needs more than that. There is no earlier checkpoint"):
        write_checkpoint(folder, 1, fail_with(full), {})
    assert [] == names(folder)


def test_full_disk_in_a_native_librarys_words_is_understood(folder):
    error = RuntimeError("I/O error: No space left on device (os error 28)")
    with pytest.raises(RecordError, match=r"the disk of .* is full"):
        write_checkpoint(folder, 1, fail_with(error), {})


def test_full_disk_while_sealing_leaves_nothing(folder, monkeypatch):
    def fail(path):
        (path / "COMPLETE").write_text("{")
        raise OSError(errno.ENOSPC, "No space left on device")

    write(folder, 1)
    monkeypatch.setattr(checkpoints, "seal", fail)
    with pytest.raises(RecordError, match="step-000001 is intact"):
        write(folder, 2)
    assert ["step-000001"] == names(folder)


def test_too_little_room_is_refused_before_writing(folder, monkeypatch):
    write(folder, 1, content=b"x" * 1000)
    usage = type("Usage", (), {"free": 500})
    monkeypatch.setattr(checkpoints.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(RecordError, match="is full"):
        write_checkpoint(folder, 2, {"model": lambda place: pytest.fail("it wrote")}, {})


def test_other_disk_errors_are_explained(folder):
    write(folder, 1)
    with pytest.raises(RecordError, match=r"could not be written.*Input/output error.*step-000001 is intact"):
        write_checkpoint(folder, 2, fail_with(OSError(errno.EIO, "Input/output error")), {})


@contextmanager
def small_disk(path, megabytes):
    """Mount a real little disk, or skip where this is not allowed."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount program")
    if done.returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


TENSORS = {"weights": torch.zeros(1_500_000)}


@pytest.mark.parametrize(
    "save",
    [
        lambda place: safetensors.torch.save_file(TENSORS, place / "model.safetensors"),
        lambda place: torch.save(TENSORS, place / "optimizer.pt"),
        lambda place: np.save(place / "values.npy", TENSORS["weights"].numpy()),
        lambda place: (place / "bytes").write_bytes(bytes(6_000_000)),
    ],
    ids=["safetensors", "torch", "numpy", "bytes"],
)
def test_a_disk_that_really_fills_loses_nothing(tmp_path, save):
    with small_disk(tmp_path / "disk", 4) as disk:
        write(disk / "checkpoints", 1, content=b"x" * 100_000)
        with pytest.raises(RecordError, match=r"is full.*step-000001 is intact"):
            write_checkpoint(disk / "checkpoints", 2, {"model": save}, {})
        assert ["step-000001"] == names(disk / "checkpoints")
        assert 1 == newest_complete(disk / "checkpoints").checkpoint.step


def test_marker_is_json_of_sizes_and_digests(folder):
    table = json.loads((write(folder, 1) / "COMPLETE").read_text())
    assert {"model/weights", "state.json"} == set(table["files"])
