"""Recipe to finished run: validate, load, check, train, evaluate, and leave a run directory behind.

``launch`` starts a run and ``resume`` continues one; the command line and ``posttrain.train`` both call them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from posttrain.assemble import Assembly, Prepared, assemble, prepare
from posttrain.checks.report import CheckResult, verdict
from posttrain.checks.run import run_checks
from posttrain.config import Plug, Recipe, RewardPart
from posttrain.errors import CheckError, ConfigError, Interrupted, RecordError, RewardError
from posttrain.evals.record import append_result
from posttrain.evals.result import EvalResult
from posttrain.evals.run import evaluate
from posttrain.evals.scores import score_quality
from posttrain.loops import offline, sync
from posttrain.loops.session import LOSSES, Progress, Session, silent
from posttrain.models.load import Loaded
from posttrain.models.threads import ThreadPlan, apply_threads, choose_threads
from posttrain.records.environment import describe_environment
from posttrain.records.journal import Journal
from posttrain.records.metrics import StepRecord
from posttrain.records.run_directory import RunDirectory, fresh_path, refuse_used
from posttrain.tasks.curriculum import Rests
from posttrain.tasks.demonstrations import given_group
from posttrain.tasks.order import TaskOrder, stable_hash
from posttrain.tasks.taskset import TaskSet


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """A run that has ended."""

    directory: Path
    """The run directory."""
    steps: tuple[StepRecord, ...]
    """One record per batch."""
    evaluations: tuple[EvalResult, ...]
    """Every held-out evaluation of this start, in order."""
    checks: tuple[CheckResult, ...] = ()
    """The invariants' verdict before the first step."""
    findings: tuple[Mapping[str, Any], ...] = ()
    """What went wrong or is worth reading, from findings.jsonl."""
    loaded: Loaded | None = field(default=None, repr=False)
    """The trained model and its tokenizer, in memory."""


def launch(
    recipe: Recipe,
    *,
    progress: Progress | None = None,
    check: bool = True,
    on_check: Callable[[CheckResult], None] = lambda result: None,
    tasks: TaskSet | None = None,
    held_out: TaskSet | None = None,
    loaded: Loaded | None = None,
) -> Result:
    """Start a new run. Raises a PosttrainError where it cannot run; nothing is overwritten.

    ``tasks``, ``held_out`` and ``loaded`` replace what the recipe would read; such a run needs them again to resume.
    """
    progress = progress or silent()
    path = Path(recipe.run.directory).expanduser() if recipe.run.directory else fresh_path(recipe.run.name)
    refuse_used(path)
    plan = choose_threads(recipe.run.threads)
    apply_threads(plan)
    prepared = prepare(recipe, tasks=tasks, held_out=held_out)
    assembly = assemble(prepared, loaded=loaded)
    for note in (*assembly.notes, f"threads: {plan.threads} ({plan.reason})"):
        progress.note(note)
    checks = verify(assembly, on_check) if check else ()
    progress.note(verdict(checks) if check else "invariants were not checked")
    with RunDirectory.create(path, recipe, environment(recipe, plan, assembly)) as run:
        write_findings(run, checks)
        session = make_session(assembly, run, progress)
        return asyncio.run(go(session, assembly, run, checks))


def resume(
    path: str | Path,
    *,
    progress: Progress | None = None,
    tasks: TaskSet | None = None,
    held_out: TaskSet | None = None,
    loaded: Loaded | None = None,
    rewards: Sequence[RewardPart] | None = None,
    steps: int | None = None,
) -> Result:
    """Continue a run from its newest whole checkpoint with the recorded recipe and threads; ``steps`` extends it.

    ``rewards`` replaces recorded ones that cannot be imported again, such as a function defined in a notebook.
    """
    progress = progress or silent()
    with RunDirectory.open(path) as run:
        recipe = run.recipe
        if steps is not None:
            recipe = recipe.model_copy(update={"run": recipe.run.model_copy(update={"steps": steps})})
        if rewards is not None:
            recipe = recipe.model_copy(update={"rewards": tuple(rewards)})
        refuse_missing_tasks(run, tasks)
        refuse_fewer_steps(run, recipe.run.steps)
        recorded = run.environment.get("threads", {}).get("threads")
        plan = choose_threads(recorded or recipe.run.threads)
        apply_threads(plan)
        prepared = prepare(recipe, tasks=tasks, held_out=held_out)
        assembly = assemble(prepared, loaded=loaded)
        refuse_other_inputs(run, assembly)
        if steps is not None:
            run.record_recipe(run.recipe.model_copy(update={"run": recipe.run}))
        session = make_session(assembly, run, progress)
        found, messages = session.journal.resume(session.learner)
        if found is not None:
            session.restore(found.state)
            session.surplus = session.journal.surplus(found)
            session.losses.extend(record.metrics.get("loss", math.inf) for record in run.metrics.read()[-LOSSES:])
        run.note_resume(environment(recipe, plan, assembly))
        for note in messages:
            progress.note(note)
        progress.note(f"resumed from step {session.state.step}" if found else "no checkpoint yet: from the first step")
        if session.over:
            progress.note(f"the run has its {session.state.step} batches already; more of them with --steps")
        return asyncio.run(go(session, assembly, run, ()))


async def go(session: Session, assembly: Assembly, run: RunDirectory, checks: Sequence[CheckResult]) -> Result:
    """Run the loop between its evaluations; on an orderly stop leave a checkpoint and say how to continue."""
    await session.weight_sync.carry(session.learner, [session.engine], session.learner.version)
    results: list[EvalResult] = []
    session.evaluate = evaluation(assembly, run, results) if assembly.held_out is not None else None
    loop = sync.train if assembly.prepared.algorithm.needs.engine else offline.train
    with session.stop.on_signals():
        try:
            if session.evaluate is not None and due(session, run):
                await session.stop.unless_asked(session.evaluate(session))
            await loop(session)
        except (Interrupted, RewardError) as stopped:
            session.checkpoint()
            raise type(stopped)(
                f"{str(stopped).rstrip('.')}. Everything is kept; continue with --resume {run.path}"
            ) from stopped
    return Result(
        directory=run.path,
        steps=tuple(run.metrics.read()),
        evaluations=tuple(results),
        checks=tuple(checks),
        findings=tuple(run.findings.read()),
        loaded=assembly.loaded,
    )


def due(session: Session, run: RunDirectory) -> bool:
    """True if an evaluation belongs at this very step and is not on record yet."""
    settings, step = session.recipe.evaluation, session.state.step
    if settings is None or any(row.get("step") == step for log in (run.evals, run.scores) for row in log.read()):
        return False
    if step == 0:
        return settings.before
    return session.over or bool(settings.every and step % settings.every == 0)


def evaluation(assembly: Assembly, run: RunDirectory, results: list[EvalResult]) -> Any:
    """The held-out evaluation of a run as a coroutine function of its session."""
    recipe, held_out = assembly.prepared.recipe, assembly.held_out
    assert recipe.evaluation is not None
    assert held_out is not None
    settings = recipe.evaluation
    if assembly.prepared.algorithm.needs.scores:
        return score_evaluation(assembly, run, held_out)

    async def measure(session: Session) -> Mapping[str, float]:
        session.progress.station("evaluate")
        assert session.rubric is not None
        result = await evaluate(
            held_out,
            engine=session.engine,
            chat=session.chat,
            rubric=session.rubric,
            sampling=recipe.rollouts.sampling(settings.temperature),
            samples=settings.samples,
            seed=stable_hash("evaluation", recipe.run.seed),
            ks=settings.k,
            make_env=assembly.prepared.make_env,
            max_turns=recipe.rollouts.max_turns,
            step=session.state.step,
            label=recipe.run.name,
            progress=session.progress.rollouts,
        )
        append_result(run.path / "evals.jsonl", result)
        results.append(result)
        first = result.pass_at[min(result.pass_at)]
        session.progress.note(
            f"step {session.state.step}: pass@{min(result.pass_at)} {first.mean:.1%} "
            f"({first.low:.1%} to {first.high:.1%}) on {len(held_out)} held-out tasks"
        )
        return result.metrics()

    return measure


def score_evaluation(assembly: Assembly, run: RunDirectory, held_out: TaskSet) -> Any:
    """The held-out accuracy and calibration of a score head as a coroutine function of its session."""
    algorithm: Any = assembly.prepared.algorithm
    learner: Any = assembly.learner
    groups = [given_group(task, place, assembly.chat, algorithm.needs.data) for place, task in enumerate(held_out)]

    async def measure(session: Session) -> Mapping[str, float]:
        session.progress.station("evaluate")
        found = score_quality(groups, algorithm=algorithm, learner=learner, pack=session.pack)
        run.scores.append({"step": session.state.step, **asdict(found)})
        what = "steps" if algorithm.needs.data == "steps" else "pairs"
        session.progress.note(
            f"step {session.state.step}: accuracy {found.accuracy:.1%} ({found.low:.1%} to {found.high:.1%}) on "
            f"{found.count} held-out {what}, chance {found.chance:.1%}, calibration error {found.calibration_error:.3f}"
        )
        return found.metrics()

    return measure


def verify(assembly: Assembly, on_check: Callable[[CheckResult], None]) -> tuple[CheckResult, ...]:
    """Run every invariant on the loaded model; raise CheckError if one fails."""
    results = asyncio.run(run_checks(assembly.subject(), on_check))
    failed = [result for result in results if result.status == "fail"]
    if failed:
        lines = "; ".join(f"{r.name}: {r.measured} (expected {r.expected})" for r in failed)
        raise CheckError(f"{len(failed)} invariants do not hold: {lines}. --no-check trains all the same.")
    return results


def make_session(assembly: Assembly, run: RunDirectory, progress: Progress) -> Session:
    """The loop's view of an assembly and its run directory."""
    recipe = assembly.prepared.recipe
    return Session(
        recipe=recipe,
        algorithm=assembly.prepared.algorithm,
        learner=assembly.learner,
        engine=assembly.engine,
        weight_sync=assembly.weight_sync,
        pack=assembly.pack,
        chat=assembly.chat,
        tasks=assembly.tasks,
        order=TaskOrder(len(assembly.tasks), recipe.run.seed),
        journal=Journal(
            run, rollouts_every=recipe.run.record_rollouts_every, keep_checkpoints=recipe.run.keep_checkpoints
        ),
        progress=progress,
        rubric=assembly.prepared.rubric,
        make_env=assembly.prepared.make_env,
        rests=None if recipe.tasks.curriculum is None else Rests(recipe.tasks.curriculum),
    )


def environment(recipe: Recipe, plan: ThreadPlan, assembly: Assembly) -> dict[str, Any]:
    """What the run directory says about where the run runs."""
    return describe_environment(
        seeds={"run": recipe.run.seed}, threads=asdict(plan), model={"name": assembly.loaded.name, **inputs(assembly)}
    )


def inputs(assembly: Assembly) -> dict[str, str]:
    """Digests of what a run reads and does not keep: the model it starts from, its teachers, template and tasks."""
    found = {
        "digest": assembly.loaded.revision_digest,
        "template": assembly.chat.template_hash,
        "tasks": assembly.tasks.digest,
    }
    teachers = getattr(assembly.learner, "teachers", None)
    found |= {} if teachers is None else {"teachers": teachers.digest}
    return found | ({"held_out": assembly.held_out.digest} if assembly.held_out is not None else {})


def refuse_other_inputs(run: RunDirectory, assembly: Assembly) -> None:
    """Raise RecordError if model, template or tasks are not those that the run began with."""
    before, recipe = run.environment.get("model", {}), assembly.prepared.recipe
    names = {
        "digest": f"another model than {recipe.model.path} is now",
        "template": "another chat template",
        "tasks": f"other tasks than {assembly.tasks.name} holds now",
        "held_out": "other held-out tasks",
        "teachers": "another teacher",
    }
    for key, digest in inputs(assembly).items():
        if before.get(key, digest) != digest:
            raise RecordError(
                f"{run.path} began with {names[key]} (their digests differ), so it cannot continue exactly. Restore "
                "what was changed, or start a new run with model.path set to this one."
            )


def refuse_fewer_steps(run: RunDirectory, steps: int) -> None:
    """Raise ConfigError if the run has more batches on record than it is to have in all."""
    done = max((record.step for record in run.metrics.read()), default=0)
    if steps < done:
        raise ConfigError(f"{run.path} has {done} batches already; --steps is the number in all, got {steps}")


def recorded_algorithm(path: str | Path) -> Plug:
    """The algorithm section of a run; raises RecordError if there is no run."""
    with RunDirectory.open(path, write=False) as run:
        return run.recipe.algorithm


def refuse_missing_tasks(run: RunDirectory, tasks: TaskSet | None) -> None:
    """Raise RecordError if the run began with tasks in memory and they are not given again."""
    path = run.recipe.tasks.path or ""
    if tasks is None and path.startswith("<") and path.endswith(">"):
        raise RecordError(
            f"{run.path} began with tasks in memory ({path}), which no record holds: give them again with "
            "posttrain.resume(run, tasks=...), and the reward with reward=... if it is a function of a notebook"
        )


def write_findings(run: RunDirectory, checks: Sequence[CheckResult]) -> None:
    """Keep what the checks warned of."""
    for result in checks:
        if result.status == "warn":
            run.findings.append(
                {
                    "step": 0,
                    "severity": "warning",
                    "name": result.name,
                    "measured": result.measured,
                    "expected": result.expected,
                }
            )


def describe(prepared: Prepared) -> dict[str, int | float]:
    """The derived batch table of a recipe, before a model is loaded."""
    recipe, needs = prepared.recipe, prepared.algorithm.needs
    updates = recipe.batches.epochs * recipe.batches.minibatches
    table: dict[str, int | float] = {"tasks": len(prepared.tasks), "batches": recipe.run.steps}
    if needs.engine:
        prompts, size = recipe.rollouts.prompts_per_step, recipe.rollouts.group_size
        table |= {
            "prompts per batch (groups)": prompts,
            "rollouts per group": size,
            "rollouts per batch": prompts * size,
            "sampled tokens per batch, at most": prompts
            * size
            * recipe.rollouts.max_new_tokens
            * recipe.rollouts.max_turns,
            "rollouts in all": prompts * size * recipe.run.steps,
        }
        if needs.greedy:
            table |= {"greedy rollouts per batch": prompts}
        if needs.refill:
            table |= {"draws per batch, at most": 1 + needs.refill}
    else:
        table |= {"demonstrations per batch": recipe.batches.demonstrations_per_step}
    drawn = (
        recipe.rollouts.prompts_per_step if needs.engine else recipe.batches.demonstrations_per_step
    ) * recipe.run.steps
    return table | {
        "optimizer steps per batch": updates,
        "optimizer steps in all": updates * recipe.run.steps,
        "passes over the tasks": round(drawn / len(prepared.tasks), 2),
    }
