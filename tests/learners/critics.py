"""Learners with a critic, and a loss that moves policy and critic."""

import torch

from posttrain.batches.pack import pack
from posttrain.learners.local import Config, LocalLearner
from posttrain.models.values import Critic
from posttrain.types import Loss, Needs
from tests.models.samples import ragged_groups
from tests.tiny_models import build_tiny

LAYOUTS = ("padded", "packed", "shared")


def build(*, shared=False, warmup=0, rate=1e-2, model=None, own=None, needs=None, head_seed=3, **settings):
    """A learner whose value head is random."""
    model = build_tiny() if model is None else model
    own = None if shared else own or build_tiny(seed=5)
    critic = Critic(model, own=own, learning_rate=rate, warmup_steps=warmup)
    generator = torch.Generator().manual_seed(head_seed)
    with torch.no_grad():
        critic.head.linear.weight.copy_(torch.randn(critic.head.linear.weight.shape, generator=generator))
    options = {"learning_rate": 1e-2} | settings
    return LocalLearner(Config(**options), model, 1.0, 10, needs or Needs(values=True), critic=critic)


def loss(batch, logprobs, entropy, values):
    """Likelihood of the tokens plus half the squared distance of the values to the advantages."""
    weight = batch.token_weight["policy"]
    squared = 0.5 * (values - batch.advantages) ** 2
    return Loss(total=(weight * (squared - logprobs)).sum())


def batches(layout="shared", budget=60):
    return pack(ragged_groups(), token_budget=budget, layout=layout)


def train(learner, steps, layout="shared"):
    found = []
    for _ in range(steps):
        for microbatch in batches(layout):
            learner.forward_backward(microbatch, loss)
        found.append(learner.step())
    return found


def weights(learner):
    return {name: tensor.detach().clone() for name, tensor in learner.trained_tensors()}


def gradients(learner):
    found = {name: p.grad.clone() for name, p in learner.trained_tensors() if p.grad is not None}
    learner.clear_gradient()
    return found
