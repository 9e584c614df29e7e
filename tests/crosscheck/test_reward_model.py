"""TRL's reward trainer on a sequence classifier with the same trunk and the same score head."""

import pytest
import torch
import transformers

from posttrain.models.values import Critic
from tests.crosscheck import material, ours, theirs
from tests.crosscheck.theirs import assert_same

MARGINS = (0.25, 1.0, 0.5)
"""By how much each chosen answer is better."""


def score_weight():
    """A random score head, [1, width]."""
    return torch.randn(1, 32, generator=torch.Generator().manual_seed(4))


def classifier():
    """The policy's trunk under a score head."""
    trunk = material.policy()
    config = transformers.Qwen3Config(**trunk.config.to_dict() | {"num_labels": 1})
    model = transformers.Qwen3ForSequenceClassification(config)
    model.model.load_state_dict(trunk.model.state_dict())
    with torch.no_grad():
        model.score.weight.copy_(score_weight())
    return model.eval()


def trl_loss(margins=None, **options):
    model = classifier()
    built = theirs.trainer("Reward", model, "chosen rejected", max_length=None, **options)
    rows = [
        {"chosen_ids": [*prompt, *chosen], "rejected_ids": [*prompt, *rejected]}
        for prompt, chosen, rejected in material.PAIRS
    ]
    if margins is not None:
        rows = [row | {"margin": margin} for row, margin in zip(rows, margins, strict=True)]
    return theirs.found(built.compute_loss(built.model, built.data_collator(rows)), model)


def mine(**options):
    """posttrain's loss; its head's bias, which no pair can move, is left out of the comparison."""
    groups = [
        material.group(i, prompt, (chosen, rejected), (margin, 0.0))
        for i, ((prompt, chosen, rejected), margin) in enumerate(zip(material.PAIRS, MARGINS, strict=True))
    ]
    model = material.policy()
    critic = Critic(model)
    with torch.no_grad():
        critic.head.linear.weight.copy_(score_weight())
    found = ours.evaluate(ours.algorithm("reward_model", **options), groups, model, critic=critic)
    names = {"critic.head.linear.weight": "score.weight"}
    gradients = {names.get(name, name): g for name, g in found.gradients.items() if not name.endswith("linear.bias")}
    return ours.Found(loss=found.loss, gradients=gradients, stats={})


@pytest.mark.parametrize(
    ("margins", "options", "plug"),
    [
        (None, {}, {}),
        (MARGINS, {}, {"margin": 1.0}),
        (None, {"center_rewards_coefficient": 0.05}, {"centring": 0.05}),
        (MARGINS, {"center_rewards_coefficient": 0.05}, {"margin": 1.0, "centring": 0.05}),
    ],
)
def test_loss_and_gradient(margins, options, plug):
    assert_same(trl_loss(margins, **options), mine(**plug))
