"""Whether two run directories tell the same story: weights bit for bit, records number for number."""

import json
from pathlib import Path

import pyarrow.parquet
from safetensors.torch import load_file

from posttrain.records.checkpoints import newest_complete
from posttrain.records.ledger import State
from posttrain.records.run_directory import RunDirectory

TIMED = ("seconds", "tokens_per_second", "memory")


def assert_same_run(expected, actual):
    """The newest checkpoints and all records of two run directories are equal, times and memory excepted."""
    expected, actual = Path(expected), Path(actual)
    assert_same_checkpoint(newest(expected), newest(actual))
    assert_same_records(expected, actual)


def newest(run):
    """The newest whole checkpoint's folder."""
    return newest_complete(run / "checkpoints").checkpoint.path


def assert_same_checkpoint(expected, actual):
    """Every tensor file has the same bits, every state the same values."""
    assert expected.name == actual.name
    names = {path.relative_to(expected).as_posix() for path in expected.rglob("*.safetensors")}
    assert names == {path.relative_to(actual).as_posix() for path in actual.rglob("*.safetensors")}
    assert {"model/model.safetensors", "optimizer.safetensors"} <= names
    for name in names:
        assert_same_tensors(load_file(expected / name), load_file(actual / name), name)
    for name in ("state.json", "learner.json"):
        assert json.loads((expected / name).read_text()) == json.loads((actual / name).read_text())


def assert_same_tensors(expected, actual, name):
    """Equal names, types and bits."""
    assert expected.keys() == actual.keys()
    for key, tensor in expected.items():
        assert tensor.dtype == actual[key].dtype
        assert tensor.numpy().tobytes() == actual[key].numpy().tobytes(), f"{name}: {key} differs"


def assert_same_records(expected, actual):
    """Metrics, rollouts, evaluations, findings and ledger are equal row by row."""
    assert untimed(expected) == untimed(actual)
    assert rollouts(expected) == rollouts(actual)
    for name in ("evals.jsonl", "findings.jsonl"):
        assert rows(expected / name) == rows(actual / name)
    assert entries(expected) == entries(actual)


def untimed(run):
    """The lines of metrics.jsonl without what a clock or the system measured."""
    return [
        {name: value for name, value in row.items() if name.split("/")[0] not in TIMED}
        for row in rows(run / "metrics.jsonl")
    ]


def rows(path):
    """All lines of a file of JSON lines, as they are on disk."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def rollouts(run):
    """Every stored rollout row by file, NaN made comparable."""
    return {
        path.name: [repr(row) for row in pyarrow.parquet.read_table(path).to_pylist()]
        for path in sorted((run / "rollouts").iterdir())
    }


def entries(run):
    """The ledger's rows."""
    with RunDirectory.open(run, write=False) as opened:
        return opened.ledger.entries()


def assert_nothing_lost(run, *, steps, per_step):
    """Each step is on record once, and each position of the task order was trained or dropped exactly once."""
    assert list(range(1, steps + 1)) == [row["step"] for row in rows(run / "metrics.jsonl")]
    found = entries(run)
    assert list(range(steps * per_step)) == [entry.position for entry in found]
    assert {entry.state for entry in found} <= {State.TRAINED, State.DROPPED}
    assert [1 + entry.position // per_step for entry in found] == [entry.step for entry in found]
    evaluated = [row["step"] for row in rows(run / "evals.jsonl")]
    assert sorted(set(evaluated)) == evaluated
    leftovers = [path.name for path in run.rglob(".tmp-*")]
    assert [] == leftovers
