"""A run directory is made, opened, locked and cut back as a whole."""

import json
import subprocess
import sys

import pytest

from posttrain.errors import RecordError
from posttrain.records.checkpoints import newest_complete, write_checkpoint
from posttrain.records.ledger import State
from posttrain.records.lock import NAME
from posttrain.records.metrics import StepRecord
from posttrain.records.run_directory import RunDirectory, fresh_path
from tests.records.examples import build_group, build_recipe

ENVIRONMENT = {"versions": {"python": "3"}, "seeds": {"run": 0}}
KILLED = """
import os, signal, sys
from posttrain.records.run_directory import RunDirectory
run = RunDirectory.open(sys.argv[1])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs" / "first"


@pytest.fixture
def run(path):
    with RunDirectory.create(path, build_recipe(), ENVIRONMENT) as created:
        yield created


def fill(run, steps):
    """Write every kind of record for the steps; prompt n trains at step n."""
    for step in steps:
        run.metrics.append(StepRecord(step=step, version=step, seconds=1.0, metrics={"loss": 1 / step}))
        run.evals.append({"step": step, "pass@1": 0.5})
        run.findings.append({"step": step, "name": "entropy"})
        run.rollouts.write(step, [build_group(step)])
        run.ledger.issue(step, f"task-{step}", epoch=0, version=step - 1)
        run.ledger.mark([step], State.TRAINED, step=step)
        write_checkpoint(run.checkpoints, step, {"model": lambda place: None}, {"position": step + 1})


def contents(path):
    """All records but the ledger's own files, byte by byte."""
    files = (file for file in path.rglob("*") if file.is_file() and not file.name.startswith(("ledger", NAME)))
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def test_new_run_has_its_layout(run, path):
    assert {"config.toml", "environment.json", "checkpoints", "rollouts", NAME} == {p.name for p in path.iterdir()}


def test_recipe_comes_back(run, path):
    with RunDirectory.open(path, write=False) as opened:
        assert build_recipe() == opened.recipe


def test_environment_comes_back(run):
    assert {**ENVIRONMENT, "resumes": []} == run.environment


def test_environment_is_plain_json(run, path):
    assert {"run": 0} == json.loads((path / "environment.json").read_text())["seeds"]


def test_resumes_are_added_to_the_environment(run):
    run.note_resume({"seeds": {"run": 1}})
    run.note_resume({"seeds": {"run": 2}})
    assert [1, 2] == [entry["seeds"]["run"] for entry in run.environment["resumes"]]


def test_a_used_run_is_refused_with_the_way_out(run, path):
    with pytest.raises(RecordError, match=r"holds a run already. Continue it with --resume .*directory=.*first-2"):
        RunDirectory.create(path, build_recipe(), ENVIRONMENT)


def test_a_foreign_folder_is_refused(path):
    path.mkdir(parents=True)
    (path / "notes.txt").write_text("mine")
    with pytest.raises(RecordError, match=r"is not empty \(notes.txt\)"):
        RunDirectory.create(path, build_recipe(), ENVIRONMENT)
    assert ["notes.txt"] == [child.name for child in path.iterdir()]


def test_a_file_in_the_way_is_refused(path):
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(RecordError, match="first is a file"):
        RunDirectory.create(path, build_recipe(), ENVIRONMENT)


def test_a_file_above_is_explained(path):
    path.parent.parent.mkdir(exist_ok=True)
    path.parent.write_text("mine")
    with pytest.raises(RecordError, match=r"creating .*first: "):
        RunDirectory.create(path, build_recipe(), ENVIRONMENT)


def test_an_empty_folder_is_taken(path):
    path.mkdir(parents=True)
    with RunDirectory.create(path, build_recipe(), ENVIRONMENT) as run:
        assert path == run.path


def test_failed_creation_gives_the_lock_back(path, monkeypatch):
    with pytest.raises(AttributeError):
        RunDirectory.create(path, None, ENVIRONMENT)
    assert "" == (path / NAME).read_text()


def test_second_writer_is_refused(run, path):
    with pytest.raises(RecordError, match="being written by process"):
        RunDirectory.open(path)


def test_reader_is_welcome_beside_the_writer(run, path):
    fill(run, [1])
    with RunDirectory.open(path, write=False) as reader:
        assert 1 == reader.metrics.read()[0].step


def test_closed_run_can_be_opened_again(run, path):
    run.close()
    with RunDirectory.open(path) as opened:
        assert path == opened.path


def test_run_of_a_killed_process_can_be_opened(run, path):
    run.close()
    assert -9 == subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False).returncode
    with RunDirectory.open(path) as opened:
        assert path == opened.path


def test_opening_for_writing_cleans_leftovers(run, path):
    run.close()
    (path / "checkpoints" / ".tmp-abc").mkdir()
    with RunDirectory.open(path):
        assert [] == list((path / "checkpoints").iterdir())


def test_opening_for_reading_touches_nothing(run, path):
    (path / "checkpoints" / ".tmp-abc").mkdir()
    with RunDirectory.open(path, write=False):
        assert [".tmp-abc"] == [child.name for child in (path / "checkpoints").iterdir()]


def test_absent_run_names_its_neighbours(run, path):
    with pytest.raises(RecordError, match=r"second does not exist.*Runs in .*: first"):
        RunDirectory.open(path.parent / "second")


def test_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(RecordError, match=r"has no config.toml, so it is not a run directory"):
        RunDirectory.open(tmp_path)


def test_damaged_config_is_explained(run, path):
    (path / "config.toml").write_text("[")
    with RunDirectory.open(path, write=False) as opened, pytest.raises(RecordError, match="own config cannot be read"):
        _ = opened.recipe


@pytest.mark.parametrize("text", ["{", "[]"])
def test_damaged_environment_is_explained(run, path, text):
    (path / "environment.json").write_text(text)
    with pytest.raises(RecordError, match=r"environment.json"):
        _ = run.environment


def test_cut_back_gives_the_records_of_the_checkpoint(run, path):
    fill(run, [1, 2, 3])
    expected, ledger = contents(path), run.ledger.entries()
    fill(run, [4, 5])
    run.cut_back(3, next_position=4)
    assert expected == contents(path)
    assert ledger == run.ledger.entries()


def test_cut_back_to_the_beginning_empties_the_records(run):
    fill(run, [1, 2])
    run.cut_back(0, next_position=0)
    assert ([], [], [], [], []) == (
        run.metrics.read(),
        run.evals.read(),
        run.findings.read(),
        run.rollouts.steps(),
        run.ledger.entries(),
    )
    assert newest_complete(run.checkpoints).checkpoint is None


def test_steps_after_cut_back_can_be_written_again(run, path):
    fill(run, [1, 2, 3])
    expected = contents(path)
    run.cut_back(1, next_position=2)
    fill(run, [2, 3])
    assert expected == contents(path)


def test_closing_twice_does_nothing(run):
    run.ledger.counts()
    run.close()
    run.close()
    assert "" == (run.path / NAME).read_text()


def test_fresh_path_is_the_name_itself(tmp_path):
    assert tmp_path / "demo" == fresh_path("demo", tmp_path)


def test_fresh_path_counts_on(tmp_path):
    for name in ("demo", "demo-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.toml").write_text("")
    assert tmp_path / "demo-3" == fresh_path("demo", tmp_path)


def test_fresh_path_takes_an_empty_folder(tmp_path):
    (tmp_path / "demo").mkdir()
    assert tmp_path / "demo" == fresh_path("demo", tmp_path)
