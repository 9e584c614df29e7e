"""Sections that contradict the algorithm are refused before a model is loaded."""

import pytest

from posttrain.assemble import prepare
from posttrain.errors import ConfigError
from posttrain.refusals import refuse_unfit_sections, section_remarks
from posttrain.types import Needs
from tests.toy_runs import build_recipe

CORRECTED = {"type": "decoupled", "weight": "truncate"}
RESTING = {"curriculum": {"easy": 0.9}}


def refused(algorithm, message, /, **sections):
    with pytest.raises(ConfigError, match=message):
        prepare(build_recipe(algorithm, **sections))


def test_text_that_no_engine_sampled_cannot_be_corrected():
    refused("sft", "text that no engine sampled", correction=CORRECTED)


def test_a_curriculum_needs_pass_rates():
    refused("sft", "goes by the pass rate", tasks=RESTING)


def test_a_wrong_section_is_refused_with_its_reason():
    with pytest.raises(ConfigError, match="count the gap twice"):
        build_recipe("grpo", correction={"type": "bypass", "weight": "mask"})


@pytest.mark.parametrize("sections", [{"correction": CORRECTED}, {"tasks": RESTING}])
def test_online_algorithms_take_both(sections):
    assert prepare(build_recipe("dapo", **sections)).recipe


def test_a_wrong_place_of_the_kl_is_refused_before_anything_is_loaded():
    refused("grpo", "biased gradient", algorithm={"kl_place": "reward"})


def remarks(algorithm, **sections):
    recipe = build_recipe(algorithm, **sections)
    return section_remarks(recipe, prepare(recipe).algorithm)


def test_late_groups_are_worth_saying():
    assert any("batches late" in line for line in remarks("dapo"))
    assert [] == remarks("dapo", rollouts={"surplus_staleness": 0})
    assert [] == remarks("dapo", correction=CORRECTED)


def test_a_cut_distribution_under_a_correction_is_worth_saying():
    assert any("full distribution" in line for line in remarks("grpo", correction=CORRECTED, rollouts={"top_p": 0.9}))


class Both:
    """Wants a greedy rollout and refills."""

    needs = Needs(greedy=True, refill=1)


@pytest.mark.parametrize(("scored", "message"), [(True, "other weights"), (False, r"add a \[\[rewards\]\] part")])
def test_greedy_rollouts_need_a_reward_and_do_not_wait(scored, message):
    with pytest.raises(ConfigError, match=message):
        refuse_unfit_sections(build_recipe("remax"), Both(), scored=scored)
