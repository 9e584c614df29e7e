"""The environment of a run is described truthfully and without torch."""

import json
import platform
import subprocess
import sys

import pytest
import torch
import transformers

import posttrain
from posttrain.records import environment
from posttrain.records.environment import describe_environment, git_state, package_versions


def run_git(folder, *words):
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path):
    run_git(tmp_path, "init")
    (tmp_path / "file").write_text("1")
    run_git(tmp_path, "add", "file")
    run_git(tmp_path, "commit", "-m", "first")
    return tmp_path


def test_versions_are_the_loaded_ones():
    versions = package_versions()
    assert (platform.python_version(), posttrain.__version__) == (versions["python"], versions["posttrain"])
    assert (torch.__version__, transformers.__version__) == (versions["torch"], versions["transformers"])


def test_absent_package_is_none(monkeypatch):
    monkeypatch.setattr(environment, "PACKAGES", ("no-such-package-here",))
    assert package_versions()["no-such-package-here"] is None


def test_description_is_json_with_seeds_and_threads():
    table = json.loads(
        json.dumps(describe_environment(seeds={"run": 3}, threads={"threads": 2}, model={"name": "toy"}))
    )
    assert ({"run": 3}, {"threads": 2}, {"name": "toy"}) == (table["seeds"], table["threads"], table["model"])


def test_machine_is_described():
    machine = describe_environment(seeds={})["machine"]
    assert {"system", "processor", "cores", "memory_bytes"} == set(machine)
    assert machine["cores"] >= 1


def test_describing_loads_no_torch():
    code = (
        "import sys; from posttrain.records.environment import describe_environment; "
        "describe_environment(seeds={}); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "False" == done.stdout.strip()


def test_commit_of_a_repository(repository):
    state = git_state(repository)
    assert (40, False) == (len(state["commit"]), state["changed"])


def test_changed_file_is_seen(repository):
    (repository / "file").write_text("2")
    assert git_state(repository)["changed"]


def test_new_file_is_no_change(repository):
    (repository / "other").write_text("2")
    assert not git_state(repository)["changed"]


def test_outside_a_repository_there_is_none(tmp_path):
    assert git_state(tmp_path) is None


def test_without_git_there_is_none(repository, monkeypatch):
    monkeypatch.setattr(environment.shutil, "which", lambda name: None)
    assert git_state(repository) is None
