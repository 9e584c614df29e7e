"""Learners and algorithms that count what is asked of them, for tests of the update and the loops."""

import numpy as np
import torch

from posttrain.batches.pack import pack
from posttrain.config import Batches
from posttrain.loops.update import update
from posttrain.models.rows import token_batch
from posttrain.types import Loss, Needs, Stat, StepStats
from tests.models.samples import sample


class CountingLearner:
    """Keeps every microbatch it was given; its log-probabilities are minus the number of steps so far."""

    def __init__(self, *, skip=()):
        self.asked, self.batches, self.steps = [], [], 0
        self.skip = skip
        self.version = 0

    def logprobs(self, microbatch, *, reference=False):
        self.asked.append((reference, [(s.group, s.rollout) for s in microbatch.samples]))
        values = np.full(len(microbatch.targets), -5.0 if reference else -float(self.steps))
        return values, values * 0

    def forward_backward(self, microbatch, loss):
        batch = token_batch(microbatch, dtype=torch.float64, device="cpu")
        self.batches.append((self.steps, microbatch.samples, batch))
        logprobs = torch.full((len(microbatch.targets),), -float(self.steps), dtype=torch.float64, requires_grad=True)
        return loss(batch, logprobs, logprobs.detach() * 0, None).stats

    def step(self):
        self.steps += 1
        skipped = self.steps in self.skip
        self.version += not skipped
        return StepStats(grad_norm=float(self.steps), learning_rate=0.1, skipped=skipped, version=self.version)

    def seen(self):
        """(step, group, rollout) of every forwarded sample."""
        return [(step, s.group, s.rollout) for step, samples, _ in self.batches for s in samples]


class PlainAlgorithm:
    """A weighted sum of log-probabilities whose needs are given."""

    def __init__(self, **needs):
        self.needs = Needs(**needs)

    def keep(self, group):
        return True

    def advantages(self, groups):
        return [[np.asarray(r.reward) for r in group.rollouts] for group in groups]

    def loss(self, batch, logprobs, entropy, values):
        total = (batch.token_weight["policy"] * batch.advantages * logprobs).sum()
        return Loss(total=total, stats={"loss": Stat(kind="sum", value=float(total.detach()))})


class RefiningAlgorithm(PlainAlgorithm):
    """Gives every sample an advantage at the last moment."""

    def refine(self, samples):
        return [
            sample(s.ids[:1], s.ids[1:], group=s.group, rollout=s.rollout, old_logprobs=s.old_logprobs) for s in samples
        ]


def rows(groups=4, size=2, *, still=()):
    """Rows of one prompt token and two trained ones with advantage 1, or 0 for the (group, rollout) in still."""
    return [
        sample([5], [6, 7], group=g, rollout=r, advantages=np.full(3, float((g, r) not in still)))
        for g in range(groups)
        for r in range(size)
    ]


def run_update(samples, learner=None, algorithm=None, *, budget=1000, seed=(0, 0), **batches):
    """The update of one batch, and the learner it went to."""
    learner = CountingLearner() if learner is None else learner
    done = update(
        samples,
        learner=learner,
        algorithm=algorithm or PlainAlgorithm(),
        pack=lambda rows: pack(rows, token_budget=budget, layout="padded"),
        batches=Batches(**batches),
        constant=8.0,
        seed=seed,
    )
    return done, learner
