"""Run every invariant on the user's own model, tokenizer, template and recipe, on a first small real sample."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from posttrain.batches.build import build_samples
from posttrain.checks import exactness, sampled
from posttrain.checks.padding import check_padding_side
from posttrain.checks.preferences import check_equal_answers, check_label_balance, check_preference_start
from posttrain.checks.report import CheckResult
from posttrain.checks.teacher import check_teacher, disagreeing
from posttrain.loops.sync import refuse_broken_rewards
from posttrain.protocols import Algorithm, Engine, Env, Learner, Packer
from posttrain.rollouts.group import Roller, roll_batch
from posttrain.rollouts.rubric import Rubric
from posttrain.tasks.chat import Chat
from posttrain.tasks.demonstrations import asked, given_group
from posttrain.tasks.order import TaskOrder
from posttrain.tasks.preferences import KINDS, candidate_group
from posttrain.tasks.taskset import TaskSet
from posttrain.types import Ending, Group, Layout, Rollout, Sampling, Segment

GROUPS, MEMBERS = 3, 4
"""Size of the small first sample: at most so many groups of at most so many rollouts."""
FEW = 6
"""Rows of it that go through every layout, whole groups first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """What is checked: the objects that will train."""

    algorithm: Algorithm
    learner: Learner
    engine: Engine
    chat: Chat
    pack: Packer
    layouts: frozenset[Layout]
    tasks: TaskSet
    order: TaskOrder
    sampling: Sampling
    group_size: int
    prompts_per_step: int
    max_turns: int
    rubric: Rubric | None
    make_env: Callable[[], Env]
    max_failed_share: float = 0.5


async def run_checks(
    subject: Subject, announce: Callable[[CheckResult], None] = lambda result: None
) -> tuple[CheckResult, ...]:
    """Return every result in order; each is announced as soon as it is known. Dropout is off meanwhile."""
    with getattr(subject.learner, "without_dropout", contextlib.nullcontext)():
        return await _run_checks(subject, announce)


async def _run_checks(subject: Subject, announce: Callable[[CheckResult], None]) -> tuple[CheckResult, ...]:
    results: list[CheckResult] = []

    def keep(make: Callable[[], CheckResult | Iterable[CheckResult]]) -> None:
        start = time.monotonic()
        made = make()
        found = [made] if isinstance(made, CheckResult) else list(made)
        seconds = (time.monotonic() - start) / max(len(found), 1)
        for result in found:
            results.append(replace(result, seconds=seconds))
            announce(results[-1])

    start = time.monotonic()
    groups = await first_sample(subject) if subject.algorithm.needs.engine else demonstrations(subject)
    spent = time.monotonic() - start
    rows = build_samples(groups, [[np.asarray(1.0) for _ in group.rollouts] for group in groups])
    samples = [sample for sample in rows if sample.loss_mask.any()]
    learner, algorithm = subject.learner, subject.algorithm
    if algorithm.needs.teacher_logprobs:
        samples = disagreeing(samples, learner, subject.pack)
    few = [sample for sample in samples if sample.rollout < MEMBERS - 1][:FEW] or samples[:FEW]
    keep(lambda: sampled.check_template(subject.chat))
    keep(lambda: sampled.check_stop_trained(*rows_and_endings(groups, algorithm.needs.engine), subject.chat.stop_ids))
    keep(lambda: sampled.check_loss_mask(rows))
    if not samples:
        return tuple(results)
    if algorithm.needs.scores:
        scored = build_samples(groups, algorithm.advantages(groups))[:FEW]
        keep(lambda: exactness.check_layouts(algorithm.refine(scored), learner, algorithm, subject.layouts))  # type: ignore[attr-defined]
        return tuple(results)
    keep(lambda: exactness.check_ratio(samples, learner, subject.pack))
    if algorithm.needs.ref_logprobs:
        keep(lambda: exactness.check_reference(samples, learner, subject.pack))
    if algorithm.needs.engine:
        cut = subject.sampling.top_p < 1 or subject.sampling.top_k > 0 or subject.sampling.min_p > 0
        keep(lambda: exactness.check_engine(samples, learner, subject.pack, filtered=cut))
        if getattr(learner, "teachers", None) is not None:
            keep(lambda: check_teacher(samples, learner, subject.pack))
    pictured = any(sample.images for sample in samples)
    layouts: frozenset[Layout] = frozenset({"padded"}) if pictured else subject.layouts
    keep(lambda: exactness.check_layouts(few, learner, algorithm, layouts))
    if not pictured:
        keep(lambda: check_padding_side(samples, learner))
    if getattr(algorithm, "start", None) is not None and algorithm.needs.ref_logprobs:
        keep(lambda: check_preference_start(samples, learner, algorithm, subject.pack))
    if algorithm.needs.whole_groups:
        keep(lambda: check_equal_answers(few, learner, algorithm))
    balance = getattr(algorithm, "label_weights", None)
    if balance is not None:
        keep(lambda: check_label_balance(subject.tasks, **balance))
    keep(lambda: exactness.check_masked_nan(few, learner, algorithm))
    if algorithm.needs.engine:
        if algorithm.needs.group_size > 1:
            equal = algorithm.advantages([equally_rewarded(group) for group in groups])
            advantages = [float(np.max(np.abs(a), initial=0.0)) for group in equal for a in group]
            keep(lambda: exactness.check_equal_rewards(few, learner, algorithm, max(advantages, default=0.0)))
        keep(lambda: sampled.check_truncated(groups))
        if subject.rubric is not None:
            keep(lambda: [replace(sampled.check_spread(groups), seconds=spent)])
    return tuple(results)


def equally_rewarded(group: Group) -> Group:
    """The group with reward 0.7 in every part of every rollout; of copies, where the number of turns differs."""
    rollouts = group.rollouts
    if len({rollout.turn_count for rollout in rollouts}) > 1:
        rollouts = tuple(replace(rollouts[0], index=index) for index in range(len(rollouts)))
    return replace(group, rollouts=tuple(_earning(rollout, 0.7) for rollout in rollouts))


def _earning(rollout: Rollout, reward: float) -> Rollout:
    scores = tuple(replace(score, value=reward, steps=()) for score in rollout.scores)
    return replace(rollout, reward=reward, scores=scores, turn_scores=())


async def first_sample(subject: Subject) -> list[Group]:
    """Real rollouts of the order's first tasks; nothing of the run's own state is used up."""
    count = min(GROUPS, subject.prompts_per_step)
    drawn = [(p, asked(subject.tasks[subject.order.index(p)])) for p in range(count)]
    roller = Roller(
        env_factory=subject.make_env,
        engine=subject.engine,
        chat=subject.chat,
        sampling=subject.sampling,
        rubric=subject.rubric,
        max_turns=subject.max_turns,
    )
    members = min(MEMBERS, subject.group_size)
    groups, tally = await roll_batch(drawn, group_size=members, seed_of=subject.order.rollout_seed, roller=roller)
    refuse_broken_rewards(tally, subject.max_failed_share)
    return [group for group in groups if group.rollouts]


def demonstrations(subject: Subject) -> list[Group]:
    """The order's first demonstrations as groups of one, or its first tasks' given answers as groups."""
    if subject.algorithm.needs.data in KINDS:
        few = range(min(GROUPS, len(subject.tasks)))
        return [candidate_group(subject.tasks[subject.order.index(p)], p, subject.chat) for p in few]
    few = range(min(GROUPS * MEMBERS, len(subject.tasks)))
    data = subject.algorithm.needs.data
    return [given_group(subject.tasks[subject.order.index(p)], p, subject.chat, data) for p in few]


def rows_and_endings(groups: Sequence[Group], sampled_now: bool) -> tuple[list[Segment], list[Ending | None]]:
    """Every segment with how it ended; demonstrations have None."""
    rows, endings = [], []
    for group in groups:
        for rollout in group.rollouts:
            for segment in rollout.segments[-1:]:
                rows.append(segment)
                endings.append(rollout.ending if sampled_now else None)
    return rows, endings
