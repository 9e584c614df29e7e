"""Lines survive a kill, a full disk and a cut back."""

import builtins
import datetime
import errno
import math

import numpy as np
import pytest

from posttrain.errors import RecordError
from posttrain.records import json_lines
from posttrain.records.json_lines import JsonLines, to_plain


@pytest.fixture
def lines(tmp_path):
    return JsonLines(tmp_path / "rows.jsonl")


def test_absent_file_has_no_rows(lines):
    assert [] == lines.read()


def test_rows_come_back_in_order(lines):
    rows = [{"step": 1, "text": "é\n"}, {"step": 2, "list": [1, 2.5, None]}]
    for row in rows:
        lines.append(row)
    assert rows == lines.read()


def test_a_row_is_on_disk_at_once(lines):
    lines.append({"step": 1})
    assert b'{"step": 1}\n' == lines.path.read_bytes()


def test_lone_surrogates_can_be_written(lines):
    lines.append({"text": "\udc80"})
    assert [{"text": "\udc80"}] == lines.read()


@pytest.mark.parametrize("torn", [b'{"step": 3', b"\xff\xfe", b'{"step": 3}'])
def test_torn_last_line_is_left_out(lines, torn):
    lines.append({"step": 1})
    with open(lines.path, "ab") as stream:
        stream.write(torn)
    assert [{"step": 1}] == lines.read()


def test_appending_cuts_a_torn_line_off(lines):
    lines.append({"step": 1})
    with open(lines.path, "ab") as stream:
        stream.write(b'{"step": 2, "long": "' + b"x" * 200_000)
    lines.append({"step": 2})
    assert b'{"step": 1}\n{"step": 2}\n' == lines.path.read_bytes()


def test_file_with_only_a_torn_line_starts_anew(lines):
    lines.path.write_bytes(b'{"st')
    lines.append({"step": 1})
    assert [{"step": 1}] == lines.read()


def test_damage_before_the_last_line_names_the_line(lines):
    lines.path.write_bytes(b'{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(RecordError, match=r"rows.jsonl, line 2: not JSON"):
        lines.read()


def test_a_line_that_is_no_object_is_named(lines):
    lines.path.write_bytes(b"[1]\n")
    with pytest.raises(RecordError, match="line 1: expected a JSON object"):
        lines.read()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_numbers_are_refused(lines, value):
    with pytest.raises(ValueError, match="JSON compliant"):
        lines.append({"x": value})


def test_cut_back_keeps_up_to_the_step(lines):
    for step in range(1, 6):
        lines.append({"step": step})
    assert 2 == lines.cut_back(3)
    assert [{"step": 1}, {"step": 2}, {"step": 3}] == lines.read()


def test_cut_back_leaves_the_kept_bytes_alone(lines):
    lines.append({"step": 1, "x": 0.1 + 0.2, "text": "é"})
    before = lines.path.read_bytes()
    lines.append({"step": 2})
    lines.cut_back(1)
    assert before == lines.path.read_bytes()


def test_cut_back_keeps_rows_without_a_step(lines):
    lines.append({"note": "before"})
    lines.append({"step": 9})
    lines.cut_back(0)
    assert [{"note": "before"}] == lines.read()


def test_cut_back_of_an_absent_file_makes_none(lines):
    assert 0 == lines.cut_back(3)
    assert not lines.path.exists()


def test_failed_cut_back_leaves_the_file(lines, monkeypatch):
    lines.append({"step": 1})
    lines.append({"step": 2})

    def fail(source, target):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(RecordError, match=r"cutting back rows.jsonl: broken"):
        lines.cut_back(1)
    assert [{"step": 1}, {"step": 2}] == lines.read()
    assert [lines.path] == list(lines.path.parent.iterdir())


def open_full_disk(*arguments, **options):
    return FullDisk(builtins.open(*arguments, **options))


class FullDisk:
    """A file that takes half of a write and then is full."""

    def __init__(self, stream):
        self._stream = stream

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def __enter__(self):
        return self

    def __exit__(self, *reason):
        self._stream.close()

    def write(self, content):
        self._stream.write(content[: len(content) // 2])
        self._stream.flush()
        raise OSError(errno.ENOSPC, "No space left on device")


def test_full_disk_is_explained_and_leaves_whole_rows(lines, monkeypatch):
    lines.append({"step": 1})
    monkeypatch.setattr(json_lines, "open", open_full_disk, raising=False)
    with pytest.raises(RecordError, match=r"writing rows.jsonl: the disk of .* is full .*Free space.*--resume"):
        lines.append({"step": 2})
    assert b'{"step": 1}\n' == lines.path.read_bytes()


def test_plain_takes_arrays_apart():
    assert {"a": [1, 2], "b": 0.5} == to_plain({"a": np.array([1, 2]), "b": np.float64(0.5)})


def test_plain_writes_non_finite_as_none():
    assert [None, None, 1.0] == to_plain((math.nan, math.inf, 1.0))


def test_plain_writes_the_unknown_as_text():
    assert "2026-01-02" == to_plain(datetime.date(2026, 1, 2))


def test_plain_makes_keys_text():
    assert {"1": True} == to_plain({1: True})
