"""What an algorithm costs is read off its needs."""

import pytest

from posttrain.compare.cost import cost_of, cost_row, samples_of
from posttrain.types import Needs


def test_a_policy_alone_holds_four_copies_and_one_training_pass():
    cost = cost_of(Needs())
    assert (("policy",), (), 4, 0, 1) == (cost.trained, cost.frozen, cost.copies, cost.forwards, cost.backwards)


def test_ppo_holds_nine_copies():
    cost = cost_of(Needs(values=True, ref_logprobs=True, old_logprobs=True))
    assert (("policy", "critic"), ("reference",), 9, 3, 2) == (
        cost.trained,
        cost.frozen,
        cost.copies,
        cost.forwards,
        cost.backwards,
    )


@pytest.mark.parametrize("needs", [Needs(teacher_logprobs=True), Needs(divergence=lambda student, teacher: student)])
def test_a_teacher_is_frozen_and_scores_each_row(needs):
    cost = cost_of(needs)
    assert (("teacher",), 5, 1) == (cost.frozen, cost.copies, cost.forwards)


def test_a_reward_model_trains_itself_and_no_policy():
    cost = cost_of(Needs(engine=False, scores=True, values=True))
    assert (("reward model",), 4) == (cost.trained, cost.copies)


@pytest.mark.parametrize(
    ("needs", "words"),
    [
        (Needs(engine=False), "nothing"),
        (Needs(), "1 rollout or more"),
        (Needs(group_size=2), "a group of 2 or more"),
        (Needs(greedy=True), "1 rollout or more, and a greedy one"),
        (Needs(group_size=2, refill=9), "a group of 2 or more, up to 10 draws of prompts"),
        (Needs(on_policy=0.5), "1 rollout or more, in 50% of batches"),
    ],
)
def test_what_is_sampled_is_said(needs, words):
    assert words == samples_of(needs)


def test_a_row_of_the_table():
    assert ("x", "policy (trains) + reference", "5", "nothing", "1", "1") == cost_row(
        "x", cost_of(Needs(engine=False, ref_logprobs=True))
    )
