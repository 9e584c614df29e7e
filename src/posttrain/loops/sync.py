"""Online training, one batch at a time: read `step` and you have seen how posttrain learns.

draw      consumes the task order, produces tasks with positions
generate  consumes tasks and the engine's weights, produces scored groups (scoring overlaps with sampling)
judge     consumes groups, produces the groups that count and their advantages
build     consumes both, produces samples
learn     consumes samples, produces new weights
carry     consumes the weights, produces a receipt that the engine has them
record    consumes all of it, produces the step's line, rollouts and ledger entries
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from posttrain.batches.build import build_samples
from posttrain.errors import RewardError
from posttrain.loops.numbers import group_numbers
from posttrain.loops.session import Clock, Session, step_numbers
from posttrain.loops.update import Update, update
from posttrain.rollouts.group import Roller, Tally, roll_batch
from posttrain.types import Group, Outcome, Receipt, Sample, Task

NOTED_SHARE = 0.01
"""Share of rollouts without a reward above which the step says why."""


async def train(session: Session) -> None:
    """Train until the recipe's last batch, or until somebody asks to stop."""
    session.progress.begin(session.state.step, session.recipe.run.steps)
    try:
        while not session.over:
            session.stop.raise_if_asked()
            await step(session)
            await session.end_of_step()
    finally:
        session.progress.end()


async def step(session: Session) -> None:
    """One batch through the seven stations."""
    clock = Clock(session.progress)
    with clock("draw"):
        drawn = draw(session)
    with clock("generate"):
        groups, tally = await session.stop.unless_asked(generate(session, drawn))
    with clock("judge"):
        counted, advantages = judge(session, groups)
    with clock("build"):
        samples = build_samples(counted, advantages)
    with clock("learn"):
        result = learn(session, samples)
        session.count_nonfinite(result, groups, samples)
    with clock("carry"):
        receipt = await carry(session)
    record(session, clock, drawn, groups, counted, samples, tally, result, receipt)


def draw(session: Session) -> list[tuple[int, Task]]:
    """The next tasks of the order, entered in the ledger as issued."""
    first, count = session.state.position, session.recipe.rollouts.prompts_per_step
    drawn = [(p, session.tasks[session.order.index(p)]) for p in range(first, first + count)]
    session.journal.issued(drawn, session.order, session.learner.version)
    return drawn


async def generate(session: Session, drawn: Sequence[tuple[int, Task]]) -> tuple[list[Group], Tally]:
    """Roll every group out and score it as soon as it is complete."""
    rollouts = session.recipe.rollouts
    total, done = len(drawn) * rollouts.group_size, itertools.count(1)
    assert session.rubric is not None
    assert session.make_env is not None
    roller = Roller(
        env_factory=session.make_env,
        engine=session.engine,
        chat=session.chat,
        sampling=rollouts.sampling(),
        rubric=session.rubric,
        max_turns=rollouts.max_turns,
        on_rollout=lambda _: session.progress.rollouts(next(done), total),
    )
    groups, tally = await roll_batch(
        drawn, group_size=rollouts.group_size, seed_of=session.order.rollout_seed, roller=roller
    )
    refuse_broken_rewards(tally, session.recipe.run.max_failed_share)
    if tally.failed_share > NOTED_SHARE:
        session.progress.note(f"{tally.failed} of {tally.rollouts} rollouts have no reward: {first_reasons(tally)}")
    session.journal.scored(groups)
    for group in groups[:1]:
        session.progress.sample(group)
    return groups, tally


def refuse_broken_rewards(tally: Tally, limit: float) -> None:
    """Raise RewardError where so many rollouts could not be scored that the rest would mislead."""
    if tally.failed_share > limit:
        raise RewardError(
            f"{tally.failed} of {tally.rollouts} rollouts have no reward, more than run.max_failed_share = {limit:g} "
            f"allows. Nothing was trained on this batch. Reasons: {first_reasons(tally)}"
        )


def first_reasons(tally: Tally) -> str:
    """The most frequent reasons why rollouts have no reward."""
    most = sorted(tally.reasons.items(), key=lambda item: -item[1])[:3]
    return "; ".join(f"{count} x {reason}" for reason, count in most) or "no part applied to them"


def judge(session: Session, groups: Sequence[Group]) -> tuple[list[Group], list[list[np.ndarray]]]:
    """Leave out what the algorithm filters, and give every remaining rollout its advantage."""
    counted = [group for group in groups if group.rollouts and session.algorithm.keep(group)]
    return counted, session.algorithm.advantages(counted)


def learn(session: Session, samples: Sequence[Sample]) -> Update:
    """All optimizer steps of the batch."""
    recipe = session.recipe
    return update(
        samples,
        learner=session.learner,
        algorithm=session.algorithm,
        pack=session.pack,
        batches=recipe.batches,
        constant=float(recipe.rollouts.max_new_tokens),
        seed=(recipe.run.seed, session.state.step),
    )


async def carry(session: Session) -> Receipt:
    """The engine samples the next batch with the new weights, and the receipt proves it."""
    return await session.weight_sync.carry(session.learner, [session.engine], session.learner.version)


def record(
    session: Session,
    clock: Clock,
    drawn: Sequence[tuple[int, Task]],
    groups: Sequence[Group],
    counted: Sequence[Group],
    samples: Sequence[Sample],
    tally: Tally,
    result: Update,
    receipt: Receipt,
) -> None:
    """Write the step down and move the state forward: from here on the batch is trained."""
    session.progress.station("record")
    version = session.learner.version
    state = session.state
    numbers = group_numbers(groups, version - len([s for s in result.steps if not s.skipped]))
    numbers |= step_numbers(result, clock, numbers.get("tokens/sampled", 0.0))
    numbers["groups/dropped"] = float(len(drawn) - len(counted))
    numbers["rollouts/failed"] = float(tally.failed)
    numbers["rollouts/timeout"] = float(tally.count(Outcome.TIMEOUT))
    state.step += 1
    state.position += len(drawn)
    trained = {group.position for group in counted}
    session.journal.record(
        step=state.step,
        version=receipt.version,
        seconds=clock.total,
        metrics={name: value for name, value in numbers.items() if not math.isnan(value)},
        groups=groups,
        samples=samples,
        trained=[position for position, _ in drawn if position in trained],
        dropped=[position for position, _ in drawn if position not in trained],
    )
    session.observe(numbers)
    session.progress.step(state.step, numbers)
