"""Offline training: groups come from disk instead of an engine, everything after the group is the same.

draw     consumes the task order, produces groups: a demonstration is a group of one, given answers are one group
build    consumes them, produces samples
learn    consumes samples, produces new weights
record   consumes all of it, produces the step's line and ledger entries
"""

from __future__ import annotations

import math

from posttrain.batches.build import build_samples
from posttrain.loops.numbers import sample_numbers
from posttrain.loops.reference import References, attach, precompute
from posttrain.loops.session import Clock, Session, step_numbers
from posttrain.loops.sync import carry, learn
from posttrain.tasks.demonstrations import given_group
from posttrain.types import Group, Task

NOTHING: References = {}
"""No log-probabilities known beforehand."""


async def train(session: Session) -> None:
    """Train until the recipe's last batch, or until somebody asks to stop."""
    session.progress.begin(session.state.step, session.recipe.run.steps)
    try:
        references = precompute(session, demonstration_group) if session.recipe.batches.precompute_reference else {}
        while not session.over:
            session.stop.raise_if_asked()
            await step(session, references)
            await session.end_of_step()
    finally:
        session.progress.end()


async def step(session: Session, references: References = NOTHING) -> None:
    """One batch of demonstrations, or of given answers, through the stations."""
    clock = Clock(session.progress)
    state = session.state
    with clock("draw"):
        groups = draw(session)
    with clock("build"):
        samples = attach(build_samples(groups, session.algorithm.advantages(groups)), references)
    with clock("learn"):
        result = learn(session, samples)
        session.count_nonfinite(result, groups, samples)
    with clock("carry"):
        receipt = await carry(session)
    session.progress.station("record")
    numbers = {**sample_numbers(samples), **step_numbers(result, clock, 0.0)}
    session.losses.append(numbers.get("loss", math.inf))
    state.step += 1
    state.position += len(groups)
    session.journal.record(
        step=state.step,
        version=receipt.version,
        seconds=clock.total,
        metrics={name: value for name, value in numbers.items() if not math.isnan(value)},
        groups=(),
        samples=(),
        trained=[group.position for group in groups],
        dropped=[],
    )
    session.observe(numbers)
    session.progress.step(state.step, numbers)


def draw(session: Session) -> list[Group]:
    """The next demonstrations of the order as groups of one, entered in the ledger as issued."""
    first, count = session.state.position, session.recipe.batches.demonstrations_per_step
    drawn = [(p, session.tasks[session.order.index(p)]) for p in range(first, first + count)]
    session.journal.issued(drawn, session.order, session.learner.version)
    return [demonstration_group(session, position, task) for position, task in drawn]


def demonstration_group(session: Session, position: int, task: Task) -> Group:
    """A demonstration as a group of one rollout without a reward; given answers as rollouts with rewards."""
    return given_group(task, position, session.chat, session.algorithm.needs.data)
