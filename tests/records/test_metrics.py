"""Step records come back exactly, non-finite numbers included."""

import json
import math
import os
import signal
import subprocess
import sys

import pandas
import pytest

from posttrain.errors import RecordError
from posttrain.records.metrics import MetricsLog, StepRecord

WRITER = """
import sys
from pathlib import Path
from posttrain.records.metrics import MetricsLog, StepRecord
log = MetricsLog(Path(sys.argv[1]))
print("ready", flush=True)
step = 0
while True:
    step += 1
    log.append(StepRecord(step=step, version=step, seconds=0.5, metrics={"loss": 0.1 * step}, texts={"x": "y" * 5000}))
"""


@pytest.fixture
def log(tmp_path):
    return MetricsLog(tmp_path / "metrics.jsonl")


def record(step, **metrics):
    return StepRecord(step=step, version=step, seconds=1.5, metrics=metrics)


def test_records_come_back(log):
    expected = StepRecord(
        step=1, version=1, seconds=0.25, metrics={"reward/mean": 0.1 + 0.2, "loss": -1e-300}, texts={"note": "é"}
    )
    log.append(expected)
    assert [expected] == log.read()


def test_row_is_flat(log, tmp_path):
    log.append(record(1, loss=0.5))
    assert {"step": 1, "version": 1, "seconds": 1.5, "loss": 0.5} == json.loads(
        (tmp_path / "metrics.jsonl").read_text()
    )


def test_non_finite_is_null_and_named(log, tmp_path):
    log.append(record(1, loss=math.nan, grad_norm=math.inf))
    row = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert (None, None, {"loss": "nan", "grad_norm": "inf"}) == (row["loss"], row["grad_norm"], row["nonfinite"])


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_infinities_come_back(log, value):
    log.append(record(1, grad_norm=value))
    assert value == log.read()[0].metrics["grad_norm"]


def test_nan_comes_back(log):
    log.append(record(1, loss=math.nan))
    assert math.isnan(log.read()[0].metrics["loss"])


def test_unknown_metric_writes_nothing(log, tmp_path):
    with pytest.raises(RecordError, match="'lost' is not in the table"):
        log.append(record(1, lost=1.0))
    assert not (tmp_path / "metrics.jsonl").exists()


def test_pandas_reads_columns(log, tmp_path):
    log.append(record(1, **{"reward/mean": 0.5}))
    log.append(record(2, **{"reward/mean": math.nan}))
    table = pandas.read_json(tmp_path / "metrics.jsonl", lines=True)
    assert [1, 2] == table["step"].tolist()
    assert [False, True] == table["reward/mean"].isna().tolist()


def test_cut_back_is_exact(log):
    for step in range(1, 8):
        log.append(record(step, loss=step / 3))
    expected = log.read()[:4]
    assert 3 == log.cut_back(4)
    assert expected == log.read()


def test_appending_goes_on_after_cut_back(log):
    for step in (1, 2, 3):
        log.append(record(step))
    log.cut_back(1)
    log.append(record(2))
    assert [1, 2] == [r.step for r in log.read()]


def test_row_that_is_no_record_names_its_line(log, tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "seconds": 1}\n')
    with pytest.raises(RecordError, match="line 1: a step record needs 'version'"):
        log.read()


def test_killed_writer_leaves_whole_records(log, tmp_path):
    path = tmp_path / "metrics.jsonl"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        while not path.exists() or path.stat().st_size < 200_000:
            pass
        os.kill(child.pid, signal.SIGKILL)
    steps = [r.step for r in log.read()]
    log.append(record(steps[-1] + 1))
    assert list(range(1, len(steps) + 2)) == [r.step for r in log.read()]
