"""On-policy distillation from a trained teacher teaches the toy to add: the measured curve of bench/, in full."""

import json

import pytest
from bench.opd_addition import measure, pair


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A warm start and the expert that reward made of it."""
    return pair(str(tmp_path_factory.mktemp("demo")))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["sampled", "full"])
def test_the_student_learns_from_its_teacher(form, trained, tmp_path):
    target = tmp_path / "curve.jsonl"
    student, teacher = trained
    words = [f"student={student}", f"teacher={teacher}", f"algorithm.form={form}", "run.threads=1"]
    before, after = measure(target, words)
    assert after > before + 0.2
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    gaps = [row["kl_teacher"] for row in rows if "kl_teacher" in row]
    assert sum(gaps[-10:]) < 0.5 * sum(gaps[:10])
