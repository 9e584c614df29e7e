"""A recipe that names a preset runs with the library's formula, says so, and keeps the name in its record."""

import pytest

from posttrain.assemble import prepare
from posttrain.config import read_recipe, write_recipe
from posttrain.errors import ConfigError
from tests.toy_runs import build_recipe


def recipe(**algorithm):
    return build_recipe("grpo", rewards=[{"type": "exact"}], algorithm={"type": "grpo", **algorithm})


def test_the_algorithm_is_built_with_the_library_s_options():
    prepared = prepare(recipe(preset="nemo-rl-0.7"))
    assert ("leave_one_out", "leave_one_out_std") == (
        prepared.algorithm.config.centre,
        prepared.algorithm.config.scale,
    )


def test_every_departure_from_the_paper_is_noted():
    notes = prepare(recipe(preset="trl-1.16")).notes
    assert any("grpo: epsilon = 0.0001 (the paper's preset: 1e-06)" in note for note in notes)


def test_the_record_keeps_the_preset_s_name(tmp_path):
    write_recipe(recipe(preset="verl-0.10", clip_high=0.28), tmp_path / "config.toml")
    assert {"preset": "verl-0.10", "clip_high": 0.28} == read_recipe(tmp_path / "config.toml").algorithm.options


def test_an_unknown_preset_is_refused_before_anything_is_loaded():
    with pytest.raises(ConfigError, match="no preset called 'verl'"):
        prepare(recipe(preset="verl"))
