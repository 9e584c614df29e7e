"""Files are replaced whole, and a full disk is explained."""

import errno

import pytest

from posttrain.errors import RecordError
from posttrain.records.files import explained, is_disk_full, megabytes, write_atomically


def test_content_is_replaced(tmp_path):
    for content in (b"old", b"new"):
        write_atomically(tmp_path / "file", content)
    assert b"new" == (tmp_path / "file").read_bytes()


def test_nothing_is_left_aside(tmp_path):
    write_atomically(tmp_path / "file", b"x")
    assert [tmp_path / "file"] == list(tmp_path.iterdir())


def test_failure_keeps_the_old_content(tmp_path, monkeypatch):
    write_atomically(tmp_path / "file", b"old")

    def fail(descriptor):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="broken"):
        write_atomically(tmp_path / "file", b"new")
    assert [tmp_path / "file"] == list(tmp_path.iterdir())
    assert b"old" == (tmp_path / "file").read_bytes()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_and_full_quota_are_seen(code):
    assert is_disk_full(OSError(code, ""))


def test_other_errors_are_no_full_disk():
    assert not is_disk_full(OSError(errno.EIO, "broken"))


def test_full_disk_says_what_to_do(tmp_path):
    with (
        pytest.raises(RecordError, match=r"saving: the disk of .* is full \(.* free\). Free space"),
        explained("saving", tmp_path),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_other_errors_name_the_file(tmp_path):
    with pytest.raises(RecordError, match=r"saving: Permission denied \(/etc/x\)"), explained("saving", tmp_path):
        raise PermissionError(errno.EACCES, "Permission denied", "/etc/x")


@pytest.mark.parametrize(("count", "text"), [(1_500_000, "1.5 MB"), (2_340_000_000, "2.34 GB"), (0, "0.0 MB")])
def test_sizes_read_well(count, text):
    assert text == megabytes(count)
