"""Files are read row by row, and a broken one is named to the line and column."""

import json

import pyarrow
import pyarrow.parquet
import pytest

from posttrain.errors import DataError
from posttrain.tasks.files import file_rows

ROWS = [{"question": "one"}, {"question": "two"}]


def write(path, data: str | bytes):
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def rows(path) -> list:
    return [row for _, row in file_rows(path)]


def test_json_lines(tmp_path):
    file = write(tmp_path / "a.jsonl", "\n".join(json.dumps(row) for row in ROWS))
    assert ROWS == rows(file)


def test_places_count_lines_from_one(tmp_path):
    file = write(tmp_path / "a.jsonl", '\n{"a": 1}\n\n{"a": 2}\n')
    assert [f"{file}, line 2", f"{file}, line 4"] == [place for place, _ in file_rows(file)]


def test_blank_lines_byte_order_mark_and_windows_line_ends(tmp_path):
    file = write(tmp_path / "a.jsonl", b'\xef\xbb\xbf{"question": "one"}\r\n\r\n  \r\n{"question": "two"}\r\n')
    assert ROWS == rows(file)


def test_unusual_line_separators_inside_texts_are_no_line_ends(tmp_path):
    file = write(tmp_path / "a.jsonl", json.dumps({"q": "a\u2028b\x85c"}, ensure_ascii=False))
    assert [{"q": "a\u2028b\x85c"}] == rows(file)


def test_malformed_json_names_line_and_column(tmp_path):
    file = write(tmp_path / "a.jsonl", '{"a": 1}\n{"a": 1,}\n')
    with pytest.raises(DataError, match=r"a.jsonl, line 2, column [89]: not JSON"):
        rows(file)


def test_a_cut_off_last_line(tmp_path):
    with pytest.raises(DataError, match=r'line 2, column 7: not JSON .* near \'{"a": "x'):
        rows(write(tmp_path / "a.jsonl", '{"a": 1}\n{"a": "x'))


@pytest.mark.parametrize(("text", "kind"), [("[1]", "a list"), ("3", "a number"), ('"x"', "a text"), ("null", "null")])
def test_a_line_that_is_no_object(tmp_path, text, kind):
    with pytest.raises(DataError, match=f"line 1: expected a JSON object with columns; got {kind}"):
        rows(write(tmp_path / "a.jsonl", text))


def test_text_that_is_not_utf_8(tmp_path):
    with pytest.raises(DataError, match=r"line 2: not UTF-8 text \(byte 8 is 0xe9\). Save the file as UTF-8"):
        rows(write(tmp_path / "a.jsonl", '{"a": 1}\n{"a": "é"}\n'.encode("latin-1")))


def test_utf_16(tmp_path):
    with pytest.raises(DataError, match="line 1: not UTF-8 text"):
        rows(write(tmp_path / "a.jsonl", '{"a": 1}'.encode("utf-16")))


def test_json_nested_too_deeply(tmp_path):
    with pytest.raises(DataError, match="nested too deeply"):
        rows(write(tmp_path / "a.jsonl", "[" * 200_000))


def test_a_json_list(tmp_path):
    assert ROWS == rows(write(tmp_path / "a.json", json.dumps(ROWS, indent=1)))


def test_json_that_is_no_list(tmp_path):
    with pytest.raises(DataError, match="expected a JSON list of objects; got an object"):
        rows(write(tmp_path / "a.json", "{}"))


def test_json_lines_under_the_wrong_name(tmp_path):
    with pytest.raises(DataError, match=r"line 2, column 1: not JSON .*name it .jsonl"):
        rows(write(tmp_path / "a.json", '{"a": 1}\n{"a": 2}\n'))


def test_parquet(tmp_path):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    assert ROWS == rows(tmp_path / "a.parquet")


def test_places_in_parquet_count_rows_over_batches(tmp_path):
    pyarrow.parquet.write_table(pyarrow.table({"n": list(range(2000))}), tmp_path / "a.parquet")
    assert f"{tmp_path / 'a.parquet'}, row 2000" == list(file_rows(tmp_path / "a.parquet"))[-1][0]


def test_a_file_that_is_no_parquet(tmp_path):
    with pytest.raises(DataError, match="is not a Parquet file that can be read"):
        rows(write(tmp_path / "a.parquet", "no"))


def test_a_missing_file_suggests_its_neighbour(tmp_path):
    write(tmp_path / "train.jsonl", "{}")
    with pytest.raises(DataError, match=r"trian.jsonl does not exist. Did you mean '.*train.jsonl'\?"):
        rows(tmp_path / "trian.jsonl")


def test_a_missing_folder(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        rows(tmp_path / "none" / "a.jsonl")


def test_a_folder(tmp_path):
    with pytest.raises(DataError, match=r"is a folder.*tasks.dataset"):
        rows(tmp_path)


def test_another_kind_of_file(tmp_path):
    with pytest.raises(DataError, match=r"cannot read '.csv' files. Give one of .jsonl"):
        rows(write(tmp_path / "a.csv", "a,b"))
