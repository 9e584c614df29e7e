"""A healthy subject on a tiny model, and parts with one fault each."""

import asyncio
import dataclasses

import numpy as np
import torch

from posttrain.algorithms.grpo import GRPO, Config
from posttrain.batches.build import build_samples
from posttrain.checks.run import first_sample
from posttrain.types import Loss
from tests.toy_runs import build_assembly


def build_subject(kind="grpo", /, **sections):
    """What `posttrain check` would look at."""
    return build_assembly(kind, **sections).subject()


def real_samples(subject):
    """Samples of real rollouts, with advantage one."""
    groups = asyncio.run(first_sample(subject))
    return build_samples(groups, [[np.asarray(1.0) for _ in group.rollouts] for group in groups])


def broken(subject, **parts):
    """The subject with parts replaced."""
    return dataclasses.replace(subject, **parts)


class Wrapped:
    """Another object with something changed."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)


class HotEngine(Wrapped):
    """Samples at another temperature than it is told."""

    async def generate(self, prompt_ids, sampling, *, seed):
        return await self.inner.generate(prompt_ids, dataclasses.replace(sampling, temperature=1.1), seed=seed)


class ScaledEngine(Wrapped):
    """Reports log-probabilities of other logits than it sampled from."""

    async def generate(self, prompt_ids, sampling, *, seed):
        found = await self.inner.generate(prompt_ids, sampling, seed=seed)
        return dataclasses.replace(found, rollout_logprobs=tuple(1.01 * x for x in found.rollout_logprobs))


class ShiftedEngine(Wrapped):
    """Reports each log-probability one token too late."""

    async def generate(self, prompt_ids, sampling, *, seed):
        found = await self.inner.generate(prompt_ids, sampling, seed=seed)
        late = (found.rollout_logprobs[-1:] + found.rollout_logprobs)[: len(found.ids)]
        return dataclasses.replace(found, rollout_logprobs=late)


class DriftingLearner(Wrapped):
    """Its forward without gradient is not the one with gradient."""

    def logprobs(self, microbatch, *, reference=False):
        values, entropy = self.inner.logprobs(microbatch, reference=reference)
        return values + 0.001, entropy


class OtherReference(Wrapped):
    """Its reference is another model than the policy."""

    def logprobs(self, microbatch, *, reference=False):
        values, entropy = self.inner.logprobs(microbatch, reference=reference)
        return values + 0.001 * reference, entropy


class LeakyLearner(Wrapped):
    """Masks one array by multiplication instead of selection."""

    def __init__(self, inner, array="token_weight"):
        super().__init__(inner)
        self.array = array

    def forward_backward(self, microbatch, loss):
        leak = 0.0
        for one in microbatch.samples:
            array = getattr(one, self.array)
            arrays = array.values() if self.array == "token_weight" else [array]
            leak += sum(float((values * one.loss_mask).sum()) for values in arrays)

        def leaking(batch, logprobs, entropy, values):
            found = loss(batch, logprobs, entropy, values)
            return Loss(total=found.total + 0.0 * leak * logprobs.sum(), stats=found.stats)

        return self.inner.forward_backward(microbatch, leaking)


class WrongLayout(Wrapped):
    """Counts positions of one layout in twos."""

    def __init__(self, inner, layout):
        super().__init__(inner)
        self.layout = layout

    def forward_backward(self, microbatch, loss):
        if microbatch.layout == self.layout:
            microbatch = dataclasses.replace(microbatch, positions=2 * microbatch.positions)
        return self.inner.forward_backward(microbatch, loss)


class OrderedLearner(Wrapped):
    """Gives the first row of a microbatch more weight than the others."""

    def forward_backward(self, microbatch, loss):
        def unfair(batch, logprobs, entropy, values):
            factor = torch.where(batch.samples == 0, 2.0, 1.0)
            streams = {name: stream * factor for name, stream in batch.token_weight.items()}
            return loss(dataclasses.replace(batch, token_weight=streams), logprobs, entropy, values)

        return self.inner.forward_backward(microbatch, unfair)


class MicrobatchMean(GRPO):
    """Divides its loss by the tokens of the microbatch, as many trainers do."""

    def loss(self, batch, logprobs, entropy, values):
        found = super().loss(batch, logprobs, entropy, values)
        return Loss(total=found.total / len(logprobs), stats=found.stats)


class NoBaseline(GRPO):
    """Equal rewards push all the same."""

    def advantages(self, groups):
        return [[np.asarray(r) for r in group.rewards] for group in groups]


class HiddenPush(GRPO):
    """Its advantages of equal rewards are zero and its loss moves the weights all the same."""

    def loss(self, batch, logprobs, entropy, values):
        found = super().loss(batch, logprobs, entropy, values)
        push = (batch.token_weight["policy"] * logprobs).sum()
        return Loss(total=found.total - 0.01 * push, stats=found.stats)


def faulty(kind, **options):
    """An algorithm of a faulty kind."""
    return kind(Config(**{"kl_coefficient": 0.0} | options))
