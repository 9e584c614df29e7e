"""Rows from the datasets library: saved folders, folders of files, and what goes wrong."""

import json
import sys

import pytest

from posttrain.config import Tasks
from posttrain.errors import DataError
from posttrain.tasks.hub import dataset_rows
from posttrain.tasks.source import load_tasks

datasets = pytest.importorskip("datasets")

ROWS = [{"question": "one", "answer": "1"}, {"question": "two", "answer": "2"}]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def test_a_saved_data_set(tmp_path):
    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "saved"))
    assert ROWS == list(dataset_rows(str(tmp_path / "saved"), {}))


def test_a_saved_dictionary_gives_the_split(tmp_path):
    parts = {"train": datasets.Dataset.from_list(ROWS[:1]), "test": datasets.Dataset.from_list(ROWS[1:])}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "saved"))
    assert ROWS[1:] == list(dataset_rows(str(tmp_path / "saved"), {}, split="test"))


def test_a_folder_of_data_files(tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "train.jsonl").write_text("\n".join(json.dumps(row) for row in ROWS), encoding="utf-8")
    assert ROWS == list(dataset_rows(str(folder), {}))


def test_tasks_come_out(tmp_path):
    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "saved"))
    tasks = load_tasks(Tasks(dataset=str(tmp_path / "saved")))
    assert ("saved", ["1", "2"]) == (tasks.name, [task.answer for task in tasks])


def test_a_split_that_is_not_there(tmp_path):
    datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)}).save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(DataError, match=r"no split 'trian'. Did you mean 'train'\?"):
        list(dataset_rows(str(tmp_path / "saved"), {}, split="trian"))


def test_a_folder_without_data(tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    with pytest.raises(DataError, match=r"dataset '.*empty' cannot be loaded"):
        list(dataset_rows(str(folder), {}))


def test_a_name_that_cannot_be_reached(monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=r"dataset 'nobody/nothing-here' cannot be loaded.*network"):
        list(dataset_rows("nobody/nothing-here", {}))


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r'pip install "posttrain\[data\]"'):
        list(dataset_rows("any", {}))
