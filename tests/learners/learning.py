"""A learner on a tiny model, ragged batches, and a plain weighted likelihood to train it with."""

import torch

from posttrain import config
from posttrain.batches.pack import pack
from posttrain.learners.local import Config, LocalLearner
from posttrain.models.lora import add_lora
from posttrain.types import Loss, Needs, Stat
from tests.models.samples import ragged_groups
from tests.tiny_models import build_tiny

LAYOUTS = ("padded", "packed", "shared")


def build_model(*, lora=False, dropout=0.0, seed=0, **overrides):
    model = build_tiny(seed=seed, **overrides)
    if not lora:
        return model
    model = add_lora(model, config.Lora(rank=2, dropout=dropout), seed=seed)
    torch.manual_seed(7)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def build(model=None, *, needs=None, temperature=1.0, total_steps=10, reference_model=None, seed=0, **settings):
    return LocalLearner(
        Config(**({"learning_rate": 1e-2} | settings)),
        build_model() if model is None else model,
        temperature,
        total_steps,
        needs or Needs(),
        reference_model,
        seed,
    )


def loss(batch, logprobs, entropy, values):
    """Weighted negative log-likelihood, with the entropy as a stat."""
    assert values is None
    return Loss(
        total=-(logprobs * batch.token_weight["policy"]).sum(),
        stats={"entropy": Stat(kind="mean", value=float(entropy.detach().sum()), count=len(entropy))},
    )


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
    return {name: tensor.detach().clone() for name, tensor in learner.named_tensors()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
