"""Groups to counts per prompt, and counts to numbers over prompts."""

import pytest

from posttrain.errors import ConfigError, RewardError
from posttrain.evals.summary import Right, require_ks, summarise_group
from posttrain.functional.intervals import prompt_interval
from posttrain.types import Ending, Outcome
from tests.evals.builders import group, prompt, result, rollout, score


def test_a_rollout_is_right_if_the_first_part_reaches_one():
    assert Right()(rollout(score(1.0), score(0.0, name="format")))


@pytest.mark.parametrize("value", [0.0, 0.99, None])
def test_a_rollout_is_not_right_below_one_or_without_an_answer(value):
    assert not Right()(rollout(score(value), score(1.0, name="format")))


def test_the_deciding_part_can_be_named():
    assert Right(part="format")(rollout(score(0.0), score(1.0, name="format")))


def test_the_threshold_can_be_lowered():
    assert Right(threshold=0.5)(rollout(score(0.6)))


def test_a_part_that_does_not_apply_does_not_decide():
    assert Right()(rollout(score(None, name="only_long", outcome=Outcome.SCORED), score(1.0)))


def test_the_value_of_an_unparsable_answer_is_never_right():
    assert not Right()(rollout(score(1.0, outcome=Outcome.UNPARSABLE)))


def test_a_rollout_without_scores_is_not_right():
    assert not Right()(rollout())


def test_the_answer_is_what_the_deciding_part_read():
    assert Right().answer(rollout(score(0.0, "42"))) == "42"


def test_an_unparsable_answer_is_none():
    assert Right().answer(rollout(score(None, "no number"))) is None


def test_a_group_becomes_counts():
    rollouts = [rollout(score(1.0, "2")), rollout(score(0.0, "3"), tokens=5, ending=Ending.LENGTH)]
    counts = summarise_group(group(*rollouts, id="x", failed=1), Right())
    expected = ("x", 2, 1, 0.5, 0.5, 1, 8, 1)
    assert expected == (
        counts.id,
        counts.samples,
        counts.right,
        counts.majority,
        counts.reward,
        counts.truncated,
        counts.tokens,
        counts.failed,
    )


def test_the_majority_is_over_the_answers_read():
    rollouts = [rollout(score(0.0, "3")), rollout(score(1.0, "2")), rollout(score(0.0, "3")), rollout(score(None, "?"))]
    assert summarise_group(group(*rollouts), Right()).majority == 0.0


def test_a_group_whose_scoring_failed_has_no_samples():
    counts = summarise_group(group(failed=4), Right())
    assert (0, 0, 4) == (counts.samples, counts.right, counts.failed)


def test_pass_at_k_is_averaged_over_prompts_and_not_pooled():
    found = result(prompt("a", 1, samples=4), prompt("b", 1, samples=2))
    assert 0.375 == pytest.approx(found.pass_at[1].mean)


def test_pass_at_two_is_the_unbiased_estimate():
    found = result(prompt("a", 1), prompt("b", 2))
    assert (1 / 2 + 5 / 6) / 2 == pytest.approx(found.pass_at[2].mean)


def test_the_interval_is_over_prompts():
    found = result(prompt("a", 1), prompt("b", 2), prompt("c", 4))
    assert prompt_interval([0.25, 0.5, 1.0]) == found.average


def test_pass_at_one_is_the_average():
    found = result(prompt("a", 1), prompt("b", 3))
    assert found.average == found.pass_at[1]


def test_truncation_and_length_are_over_samples():
    found = result(
        prompt("a", 1, samples=4, truncated=3, tokens=40), prompt("b", 1, samples=1, truncated=0, tokens=10), ks=(1,)
    )
    assert (0.6, 10.0) == (found.truncated_share, found.mean_length)


def test_prompts_without_a_scored_sample_are_counted_apart():
    found = result(prompt("a", 4), prompt("b", 0, samples=0, failed=4))
    assert (1, 4, 1.0) == (found.unscored, found.failed, found.average.mean)


def test_prompts_whose_verifier_reads_no_answer_have_no_majority():
    assert result(prompt("a", 4, answers=0), prompt("b", 1, answers=0)).majority is None


def test_failures_are_said():
    found = result(prompt("a", 4), prompt("b", 1, samples=1, failed=3))
    assert found.warnings == (
        "3 samples failed or could not be scored; they count in no number",
        "pass@2 leaves out 1 prompts with fewer than 2 scored samples",
    )


def test_an_evaluation_without_any_score_is_an_error_and_not_a_zero():
    with pytest.raises(RewardError, match="every sample of all 1 prompts"):
        result(prompt("a", 0, samples=0, failed=4))


def test_a_k_that_no_prompt_has_samples_for_is_an_error():
    with pytest.raises(RewardError, match="the 2 scored samples that pass@2 needs"):
        result(prompt("a", 1, samples=1, failed=3))


@pytest.mark.parametrize("ks", [(5,), (0,), (1, 8), ()])
def test_a_k_beyond_the_samples_is_refused_before_anything_is_sampled(ks):
    with pytest.raises(ConfigError, match="from 1 to 4"):
        require_ks(ks, 4)


def test_every_k_up_to_the_samples_is_accepted():
    require_ks((1, 2, 4), 4)
