"""Task files and model folders that cannot be used are refused with the place and the remedy."""

import json
import shutil

import pytest

from tests.faults.same_run import rows
from tests.faults.test_bad_recipes import assert_refused
from tests.faults.workplace import write_lines

GOOD = {"question": "1+1=", "answer": "2"}
LONG = {"question": "1+" * 40, "answer": "2"}

FILES = {
    "not JSON": ('{"question": "1+1=", "answer": "2"}\n{"question": "2+2=" "answer": "4"}\n', "line 2", "column 21"),
    "not an object": ("[1, 2]\n", "line 1", "a list"),
    "no question": ('{"prompt": "1+1=", "answer": "2"}\n', "line 1", "'question'", "prompt"),
    "an empty question": ('{"question": " ", "answer": "2"}\n', "line 1", "empty"),
    "empty": ("", "no tasks"),
    "not UTF-8": (b'{"question": "caf\xe9", "answer": "2"}\n', "line 1", "UTF-8"),
    "every prompt too long": (json.dumps(LONG) + "\n", "longer than"),
}


@pytest.mark.parametrize("fault", FILES)
def test_a_bad_task_file_is_refused(workplace, tmp_path, fault):
    content, *fragments = FILES[fault]
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert_refused(workplace.train("plain", tmp_path / "run", f"tasks.path={path}"), path.name, *fragments)
    assert not (tmp_path / "run").exists()


def test_a_task_file_that_does_not_exist_is_refused(workplace, tmp_path):
    done = workplace.train("plain", tmp_path / "run", f"tasks.path={workplace.folder / 'tasks.json'}")
    assert_refused(done, "does not exist", "tasks.jsonl")


def test_a_missing_answer_column_is_named(workplace, tmp_path):
    done = workplace.train("plain", tmp_path / "run", "tasks.answer=anser")
    assert_refused(done, "line 1", "'anser'", "Did you mean 'answer'?")


def test_a_demonstration_without_its_text_is_refused(workplace, tmp_path):
    path = write_lines(tmp_path / "tasks.jsonl", [GOOD, {"question": "1+2="}])
    assert_refused(workplace.train("offline", tmp_path / "run", f"tasks.path={path}"), "line 2", "'answer'")


def test_a_prompt_beyond_the_window_is_skipped_and_counted(workplace, tmp_path):
    path = write_lines(tmp_path / "tasks.jsonl", [GOOD, LONG, GOOD])
    done = workplace.train("plain", tmp_path / "run", f"tasks.path={path}", "run.steps=1")
    assert (0, "") == (done.code, done.err)
    assert "tasks left out: 1 overlong" in done.out
    assert 1 == len(rows(tmp_path / "run" / "metrics.jsonl"))


def test_a_prompt_beyond_the_window_is_refused_where_that_is_asked_for(workplace, tmp_path):
    path = write_lines(tmp_path / "tasks.jsonl", [GOOD, LONG, GOOD])
    done = workplace.train("plain", tmp_path / "run", f"tasks.path={path}", "tasks.overlong=refuse")
    assert_refused(done, "1 tasks are too long", 'tasks.overlong = "skip"')


@pytest.fixture
def model(workplace, tmp_path):
    """A copy of the model that may be broken."""
    return shutil.copytree(workplace.folder / "model", tmp_path / "model")


def train_on(workplace, model):
    return workplace.train("plain", model.parent / "run", f"model.path={model}")


def test_a_model_folder_without_weights_is_refused(workplace, model):
    (model / "model.safetensors").unlink()
    assert_refused(train_on(workplace, model), str(model), "weights")


def test_weights_that_are_cut_off_are_refused(workplace, model):
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert_refused(train_on(workplace, model), str(model))


def test_a_model_folder_without_a_tokenizer_is_refused(workplace, model):
    for file in model.glob("tokenizer*"):
        file.unlink()
    assert_refused(train_on(workplace, model), str(model), "tokenizer")


def test_a_tokenizer_without_a_template_is_refused(workplace, model):
    (model / "chat_template.jinja").unlink()
    assert_refused(train_on(workplace, model), "template", "chat_template")


def test_a_model_that_does_not_exist_is_refused(workplace, tmp_path):
    done = workplace.train("plain", tmp_path / "run", "model.path=./nowhere")
    assert_refused(done, "nowhere")
    assert not (tmp_path / "run").exists()


def test_a_template_file_that_does_not_exist_is_refused(workplace, tmp_path):
    assert_refused(workplace.train("plain", tmp_path / "run", "model.chat_template=nowhere.jinja"), "nowhere.jinja")
