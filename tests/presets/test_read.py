"""Presets are the other libraries' formulas: their advantages, their refusals, and how they lie under options."""

import pytest

from posttrain.config import Plug
from posttrain.errors import ConfigError
from posttrain.plugs import build_plug, validated
from posttrain.presets.read import preset_names, read_preset, with_preset
from tests.algorithms.examples import group

WINNER_AND_LOSER = {
    "verl-0.10": (2.475, -0.354),
    "skyrl": (2.475, -0.354),
    "slime": (2.475, -0.354),
    "trl-1.16": (2.474, -0.353),
    "openrlhf-0.11": (2.475, -0.354),
    "rllm": (2.646, -0.378),
    "nemo-rl-0.7": (1.0, -0.378),
    "prime-rl": (0.875, -0.125),
    "tinker-cookbook": (0.875, -0.125),
    "open-instruct": (0.875, -0.125),
    "pipelinerl": (1.0, -0.143),
}
"""Advantages of one right answer among eight, measured in the libraries' own code."""


def advantages(preset, rewards):
    plug = Plug(type=read_preset(preset).algorithm, preset=preset)
    (found,) = build_plug("algorithms", plug).advantages([group(rewards)])
    return [float(a) for a in found]


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_gives_the_library_s_advantages(name):
    winner, loser, *_ = advantages(name, [1.0] + [0.0] * 7)
    assert (pytest.approx(WINNER_AND_LOSER[name][0], abs=6e-4), pytest.approx(WINNER_AND_LOSER[name][1], abs=6e-4)) == (
        winner,
        loser,
    )


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_leaves_the_library_s_faults_behind(name):
    assert [0.0] * 7 == advantages(name, [0.7] * 7)


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_says_where_it_was_read(name):
    preset = read_preset(name)
    assert preset.library
    assert ".py" in preset.source or ".yaml" in preset.source
    assert any(character.isdigit() for character in preset.version)


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_names_every_term_that_differs_from_ours_or_could(name):
    assert {"scale", "clip_low", "clip_high", "reduction"} <= read_preset(name).options.keys()


def test_nemo_s_scale_is_off_where_the_others_agree():
    assert pytest.approx([-0.1] + [0.1 / 7 / 0.0377964473] * 7, abs=1e-3) == advantages(
        "nemo-rl-0.7", [0.2] + [0.3] * 7
    )


def test_an_option_beside_the_preset_wins():
    config = validated("algorithms", Plug(type="grpo", preset="trl-1.16", clip_high=0.28))
    assert (0.28, 1e-4) == (config.clip_high, config.epsilon)


def test_options_without_a_preset_are_left_alone():
    assert {"clip_high": 0.28} == with_preset("grpo", {"clip_high": 0.28})


def test_an_unknown_preset_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"no preset called 'trl-1\.1'\. Did you mean 'trl-1\.16'\?"):
        validated("algorithms", Plug(type="grpo", preset="trl-1.1"))


def test_a_preset_of_another_algorithm_is_refused():
    with pytest.raises(ConfigError, match="of algorithm 'dppo', not of 'grpo'"):
        validated("algorithms", Plug(type="grpo", preset="prime-rl"))


def test_only_algorithms_know_presets():
    with pytest.raises(ConfigError, match="unknown key 'preset'"):
        validated("rewards", Plug(type="exact", preset="trl-1.16"))
