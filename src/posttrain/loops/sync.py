"""Online training, one batch at a time: read `step` and you have seen how posttrain learns.

draw      consumes the task order, produces tasks with positions
generate  consumes tasks and the engine's weights, produces scored groups (scoring overlaps with sampling);
          where an algorithm filters groups, both are repeated until the batch is full (see loops/intake.py)
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
from posttrain.loops.intake import Intake, split_by_age
from posttrain.loops.numbers import group_numbers, sample_numbers, staleness_numbers
from posttrain.loops.session import Clock, Session, step_numbers
from posttrain.loops.update import Update, update
from posttrain.rollouts.group import Roller, Tally, roll_batch
from posttrain.tasks.demonstrations import asked, demonstration_group
from posttrain.tasks.order import stable_hash
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
    intake = open_intake(session)
    while intake.hungry:
        with clock("draw"):
            drawn = draw(session, intake)
        with clock("generate"):
            intake.add(*await session.stop.unless_asked(generate(session, drawn)))
    with clock("judge"):
        counted, advantages = judge(session, intake)
    with clock("build"):
        samples = build_samples(counted, advantages)
    with clock("learn"):
        result = learn(session, samples)
        session.count_nonfinite(result, intake.settled, samples)
    with clock("carry"):
        receipt = await carry(session)
    record(session, clock, intake, samples, result, receipt)


def open_intake(session: Session) -> Intake:
    """An empty batch but for the surplus of earlier ones that is not too old."""
    recipe, needs = session.recipe, session.algorithm.needs
    bound = recipe.rollouts.surplus_staleness * recipe.batches.epochs * recipe.batches.minibatches
    young, stale = split_by_age(session.surplus, session.learner.version, bound)
    return Intake(
        target=recipe.rollouts.prompts_per_step,
        draws=1 + needs.refill,
        keep=session.algorithm.keep,
        position=session.state.position,
        carried=young,
        stale=stale,
    )


def draw(session: Session, intake: Intake) -> list[tuple[int, Task]]:
    """The next tasks of the order that do not rest, entered in the ledger as issued."""
    order, rests = session.order, session.rests
    drawn: list[tuple[int, Task]] = []
    wanted = intake.wanted
    while len(drawn) < wanted:
        index, epoch = order.index(intake.position), order.epoch(intake.position)
        if rests is None or not rests.resting(index, epoch):
            drawn.append((intake.position, session.tasks[index]))
        intake.position += 1
    session.journal.issued(drawn, order, session.learner.version)
    intake.drawn += drawn
    return drawn


async def generate(session: Session, drawn: Sequence[tuple[int, Task]]) -> tuple[list[Group], Tally]:
    """Roll every group out and score it as soon as it is complete, or take the tasks' demonstrations."""
    if not sampled_now(session):
        return [demonstration_group(task, position, session.chat) for position, task in drawn], Tally()
    rollouts = session.recipe.rollouts
    members = rollouts.group_size + session.algorithm.needs.greedy
    total, done = len(drawn) * members, itertools.count(1)
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
    prompts = [(position, asked(task)) for position, task in drawn]
    groups, tally = await roll_batch(
        prompts,
        group_size=rollouts.group_size,
        seed_of=session.order.rollout_seed,
        roller=roller,
        greedy=session.algorithm.needs.greedy,
    )
    refuse_broken_rewards(tally, session.recipe.run.max_failed_share)
    if tally.failed_share > NOTED_SHARE:
        session.progress.note(f"{tally.failed} of {tally.rollouts} rollouts have no reward: {first_reasons(tally)}")
    session.journal.scored(groups)
    for group in groups[:1]:
        session.progress.sample(group)
    return groups, tally


def sampled_now(session: Session) -> bool:
    """Whether this batch is sampled or imitates demonstrations: a coin that depends on seed and step alone."""
    share = session.algorithm.needs.on_policy
    return stable_hash("on policy", session.recipe.run.seed, session.state.step) < share * 2.0**63


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


def judge(session: Session, intake: Intake) -> tuple[list[Group], list[list[np.ndarray]]]:
    """Take what the algorithm's filter let through, up to a full batch, and give every rollout its advantage."""
    counted = intake.counted
    if intake.draws > 1 and len(counted) < intake.target:
        session.progress.note(
            f"{len(counted)} of {intake.target} groups after {intake.done} draws: the others' rewards do not differ "
            "(see groups/solve_all and groups/solve_none; easier or harder tasks, or larger groups, would help)"
        )
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
        correction=recipe.correction,
    )


async def carry(session: Session) -> Receipt:
    """The engine samples the next batch with the new weights, and the receipt proves it."""
    return await session.weight_sync.carry(session.learner, [session.engine], session.learner.version)


def record(
    session: Session,
    clock: Clock,
    intake: Intake,
    samples: Sequence[Sample],
    result: Update,
    receipt: Receipt,
) -> None:
    """Write the step down and move the state forward: from here on the batch is trained."""
    session.progress.station("record")
    state, version = session.state, session.learner.version
    before = version - len([s for s in result.steps if not s.skipped])
    if sampled_now(session):
        numbers = group_numbers(intake.groups, before) | staleness_numbers(intake.counted, before)
    else:
        numbers = dict(sample_numbers(samples))
    numbers |= step_numbers(result, clock, numbers.get("tokens/sampled", 0.0)) | intake.numbers()
    numbers["rollouts/failed"] = float(intake.tally.failed)
    numbers["rollouts/timeout"] = float(intake.tally.count(Outcome.TIMEOUT))
    numbers |= session.measure(intake.groups, state.position)
    state.step += 1
    state.position = intake.position
    session.surplus = intake.surplus
    session.journal.record(
        step=state.step,
        version=receipt.version,
        seconds=clock.total,
        metrics={name: value for name, value in numbers.items() if not math.isnan(value)},
        groups=intake.settled,
        samples=result.samples or samples,
        trained=[group.position for group in intake.counted],
        dropped=intake.dropped,
    )
    session.observe(numbers)
    session.progress.step(state.step, numbers)
