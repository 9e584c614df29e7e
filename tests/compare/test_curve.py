"""Curves are drawn from what was recorded, and nothing is drawn where nothing was."""

import json

import pytest

from posttrain.compare.curve import curve_section, owner, read_curve, spark

NAMES = ("grpo", "grpo_process", "dapo", "ppo")


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
    text = curve_section("grpo", folder, NAMES)
    assert "pass_rate, 20 batches: 0.100 to 0.850" in text
    assert "grpo-seed1" in text


def test_another_algorithm_s_curve_is_not_taken(folder):
    assert "grpo_process" not in curve_section("grpo", folder, NAMES)


@pytest.mark.parametrize("name", ["grpo_process", "dapo"])
def test_without_a_measured_curve_there_is_no_section(name, folder):
    assert "" == curve_section(name, folder, NAMES)


@pytest.mark.parametrize(
    ("stem", "name"),
    [("grpo", "grpo"), ("grpo_process", "grpo_process"), ("grpo_process_addition", "grpo_process"), ("ppo2", None)],
)
def test_a_file_belongs_to_the_longest_name_it_begins_with(stem, name):
    assert name == owner(stem, NAMES)


def test_held_out_results_stand_under_the_curve(folder):
    rows = [
        {"pass_rate": 0.1},
        {"step": 0, "held_out_pass_at_1": 0.25, "low": 0.2, "high": 0.3},
        {"who": "teacher", "step": None, "held_out_pass_at_1": 0.9},
    ]
    (folder / "ppo_addition.jsonl").write_text("\n".join(map(json.dumps, rows)))
    text = curve_section("ppo", folder, NAMES)
    assert "held-out pass@1 25.0% (20.0% to 30.0%) after 0 batches" in text
    assert "held-out pass@1 90.0%, teacher" in text
