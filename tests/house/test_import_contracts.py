"""The import contracts hold, and each of them fires on a planted violation in a copy of the package."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLOORS = "A folder imports only what stands below it"
STATIONS = "Loops and stations see sockets, never plugs"
SIBLINGS = "Plugs never see their siblings"
LIGHT = """
import importlib, pkgutil, sys
names = ["posttrain", "posttrain.types", "posttrain.protocols", "posttrain.config", "posttrain.errors"]
for package in ("posttrain.tasks", "posttrain.records"):
    folder = importlib.import_module(package).__path__
    names += [package, *(f"{package}.{module.name}" for module in pkgutil.iter_modules(folder))]
for name in names:
    importlib.import_module(name)
    if "torch" in sys.modules:
        sys.exit(f"{name} loads torch")
"""


def lint(root: Path) -> subprocess.CompletedProcess:
    """Run import-linter on the package under root/src with root's contracts."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    command += ["--no-logo", "--no-cache"]
    env = os.environ | {"PYTHONPATH": str(root / "src"), "NO_COLOR": "1", "COLUMNS": "200"}
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def copy(tmp_path):
    """A skeleton of the package: its folders and low floors, without what stands in the folders."""
    shutil.copy(ROOT / ".importlinter", tmp_path)
    package = tmp_path / "src" / "posttrain"
    for init in (ROOT / "src" / "posttrain").glob("*/__init__.py"):
        (package / init.parent.name).mkdir(parents=True)
        (package / init.parent.name / "__init__.py").write_text("")
    for name in ("__init__", "protocols", "config", "types", "errors"):
        (package / f"{name}.py").write_text("")
    return tmp_path


def write(root: Path, module: str, text: str = "") -> None:
    """Write one module of the copy, its folder made a package."""
    file = root / "src" / "posttrain" / f"{module.replace('.', '/')}.py"
    file.parent.mkdir(exist_ok=True)
    (file.parent / "__init__.py").touch()
    file.write_text(text)


def broken(output: str) -> set[str]:
    """Names of the contracts that the linter reports as broken."""
    return {name for name in (FLOORS, STATIONS, SIBLINGS) if f"{name} BROKEN" in output}


def test_the_project_keeps_its_contracts():
    result = lint(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_skeleton_breaks_nothing(copy):
    write(copy, "loops.sync", "import posttrain.batches.build\nimport posttrain.protocols\n")
    write(copy, "batches.build", "import posttrain.functional\nimport posttrain.types\n")
    write(copy, "algorithms.one", "import posttrain.models\nimport posttrain.config\n")
    result = lint(copy)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("module", "imported", "contract"),
    [
        ("types", "posttrain.config", FLOORS),
        ("errors", "posttrain.types", FLOORS),
        ("functional.planted", "posttrain.errors", FLOORS),
        ("models.planted", "posttrain.engines.other", FLOORS),
        ("tasks.planted", "posttrain.records.other", FLOORS),
        ("batches.planted", "posttrain.rollouts.other", FLOORS),
        ("loops.planted", "posttrain.checks.other", FLOORS),
        ("algorithms.planted", "posttrain.rewards.other", FLOORS),
        ("engines.planted", "posttrain.learners.other", FLOORS),
        ("evals.planted", "posttrain.lab.other", FLOORS),
        ("sandboxes.planted", "posttrain.envs.other", FLOORS),
        ("rollouts.planted", "posttrain.rewards.other", STATIONS),
        ("loops.planted", "posttrain.engines.other", STATIONS),
        ("evals.planted", "posttrain.algorithms.other", STATIONS),
        ("records.planted", "posttrain.learners.other", STATIONS),
        ("algorithms.planted", "posttrain.algorithms.other", SIBLINGS),
        ("rewards.planted", "posttrain.rewards.other", SIBLINGS),
    ],
)
def test_a_planted_import_breaks_the_contract(module, imported, contract, copy):
    if imported.endswith(".other"):
        write(copy, imported.removeprefix("posttrain."))
    write(copy, module, f"import {imported}\n")
    result = lint(copy)
    assert contract in broken(result.stdout), result.stdout + result.stderr


def test_a_detour_through_another_module_is_found(copy):
    write(copy, "models.way", "import posttrain.engines.other\n")
    write(copy, "engines.other")
    write(copy, "rollouts.planted", "import posttrain.models.way\n")
    assert {FLOORS, STATIONS} == broken(lint(copy).stdout)


def test_the_light_modules_load_no_torch():
    result = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, timeout=120, check=False)
    assert (0, "") == (result.returncode, result.stderr)


def test_the_pure_functions_see_nothing_of_the_house():
    seen = [
        f"{path.name}: {line}"
        for path in (ROOT / "src" / "posttrain" / "functional").glob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith(("import posttrain", "from posttrain")) and "posttrain.functional" not in line
    ]
    assert [] == seen
