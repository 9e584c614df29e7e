"""TRL's KTO trainer: the reference point from mismatched answers, both weights, the same gradient."""

import pytest

from tests.crosscheck import material, ours, theirs
from tests.crosscheck.theirs import assert_same

CASES = {
    "plain": ({}, {}),
    "weights": (
        {"desirable_weight": 1.5, "undesirable_weight": 0.5},
        {"desirable_weight": 1.5, "undesirable_weight": 0.5},
    ),
    "beta": ({"beta": 0.5}, {"beta": 0.5}),
}


DIRECTIONS = {"forwards": (material.policy, material.reference), "backwards": (material.reference, material.policy)}
"""(policy, reference): the reference point is above 0 one way round and held at 0 the other."""


def sides(direction):
    """A fresh policy and reference."""
    policy, reference = DIRECTIONS[direction]
    return policy(), reference()


def trl_loss(model, reference, **options):
    """TRL's loss and gradient on the labelled answers, each mismatched with the one before it."""
    built = theirs.trainer(
        "KTO", model, "prompt completion label", parts={"ref_model": reference}, max_length=None, **options
    )
    answers = [list(answer) for _, answer, _ in material.LABELS]
    rows = [
        {"prompt_ids": list(prompt), "completion_ids": own, "KL_completion_ids": other, "label": good}
        for (prompt, _, good), own, other in zip(material.LABELS, answers, answers[-1:] + answers[:-1], strict=True)
    ]
    loss = built._compute_loss(built.model, built.data_collator(rows), False)
    mode = "train" if built.model.training else "eval"
    return theirs.found(loss, model), built._metrics[mode]["kl"][-1]


def mine(model, reference, **options):
    plug = ours.algorithm("kto", **options)
    return ours.evaluate(plug, material.label_groups(), model, reference=reference), plug


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient(case, direction):
    options, plug = CASES[case]
    expected, _ = trl_loss(*sides(direction), **options)
    assert_same(expected, mine(*sides(direction), **plug)[0])


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_reference_point(direction):
    _, kl = trl_loss(*sides(direction))
    _, plug = mine(*sides(direction))
    assert kl == pytest.approx(plug.numbers()["kl_ref/mismatched"], abs=1e-5)


def test_the_reference_point_is_above_zero_one_way_round():
    points = [mine(*sides(direction))[1].numbers()["kl_ref/mismatched"] for direction in DIRECTIONS]
    assert max(points) > 0
    assert min(points) == 0
