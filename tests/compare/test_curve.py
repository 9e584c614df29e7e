"""Curves are drawn from what was recorded, and nothing is drawn where nothing was."""

import json

import pytest

from posttrain.compare.curve import curve_section, read_curve, spark


@pytest.fixture
def folder(tmp_path):
    rows = [{"step": step, "metrics": {"pass_rate": step / 20}} for step in range(20)]
    (tmp_path / "grpo.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    (tmp_path / "grpo-seed1.jsonl").write_text(json.dumps({"reward/mean": 0.5}) + "\n")
    (tmp_path / "grpo_process.jsonl").write_text(json.dumps({"nothing": 1}) + "\n")
    return tmp_path


def test_bars_rise_with_the_values():
    assert "▁▃▆█" == spark([0.0, 0.3, 0.7, 1.0])


def test_a_long_curve_is_drawn_in_stretches():
    assert 60 == len(spark([float(n) for n in range(1000)]))


def test_a_flat_curve_is_flat():
    assert "▁▁▁" == spark([2.0, 2.0, 2.0])


def test_numbers_under_metrics_count(folder):
    assert 0.95 == read_curve(folder / "grpo.jsonl")[-1]["pass_rate"]


def test_a_section_names_each_curve_with_its_first_and_last_values(folder):
    text = curve_section("grpo", folder)
    assert "pass_rate, 20 points: 0.100 to 0.850" in text
    assert "grpo-seed1" in text


def test_another_algorithm_s_curve_is_not_taken(folder):
    assert "grpo_process" not in curve_section("grpo", folder)


@pytest.mark.parametrize("name", ["grpo_process", "dapo"])
def test_without_a_measured_curve_there_is_no_section(name, folder):
    assert "" == curve_section(name, folder)
