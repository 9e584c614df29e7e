"""On-policy distillation from a trained teacher teaches the toy to add: the measured curve of bench/, in full."""

import json

import pytest
from bench.opd_addition import measure


@pytest.mark.slow
@pytest.mark.parametrize("form", ["sampled", "full"])
def test_the_student_comes_near_its_teacher(form, tmp_path):
    target = tmp_path / "curve.jsonl"
    before, after, teacher = measure(target, [f"algorithm.form={form}", "run.threads=1"])
    assert after > before + 0.1
    assert after > teacher - 0.15
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    gaps = [row["kl_teacher"] for row in rows if "kl_teacher" in row]
    assert sum(gaps[-10:]) < 0.5 * sum(gaps[:10])
