"""Best-of-N: sample N answers, let a judge choose, and say what the choice is worth for every n up to N.

best@n is unbiased (Cobbe et al., arXiv 2110.14168; `functional.passk.best_of_n`): the expected correctness of the
answer with the best score among n of the N. Beside it stand the judge-free choices (majority), the weighted vote
(sum of scores per answer), and pass@n, what a perfect judge would reach. The price is N answers and N verdicts a task,
and a policy at most log n - (n - 1) / n nats away (arXiv 2401.01879).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from posttrain.errors import ConfigError
from posttrain.evals.fingerprint import fingerprint, verifier_digest
from posttrain.evals.run import TemplatedChat, evaluation_seed
from posttrain.evals.searched import Cost, PromptSearch, Searched, summarise_search
from posttrain.evals.summary import Right
from posttrain.functional.passk import best_of_n as expected_best
from posttrain.functional.passk import majority_vote, pass_at_k, weighted_vote
from posttrain.functional.search import best_of_n_kl_bound
from posttrain.protocols import Engine
from posttrain.rollouts.group import Roller, gather_or_cancel, roll_group
from posttrain.rollouts.rubric import Rubric
from posttrain.rollouts.run import EnvFactory
from posttrain.tasks.taskset import TaskSet
from posttrain.types import Rollout, Sampling, Task


@dataclass(frozen=True, kw_only=True, slots=True)
class Chooser:
    """What turns the samples of a task into numbers."""

    roller: Roller
    """Samples and verifies."""
    judge: Rubric | None
    """Scores what is chosen from; None takes the verifier's own reward, an oracle."""
    right: Right
    """Says which answers are right."""
    ns: tuple[int, ...]
    """Numbers of samples to choose from."""


async def best_of_n(
    tasks: TaskSet,
    *,
    engine: Engine,
    chat: TemplatedChat,
    rubric: Rubric,
    make_env: EnvFactory,
    sampling: Sampling,
    samples: int,
    seed: int,
    judge: Rubric | None = None,
    ns: Sequence[int] | None = None,
    right: Right | None = None,
    max_turns: int = 1,
    progress: Callable[[int, int], None] | None = None,
    label: str = "",
) -> Searched:
    """Sample every task ``samples`` times and return what each way of choosing is worth; ``ns`` is 1, 2, 4 … N.

    ``rubric`` verifies the answers, ``judge`` scores them for the choice. Draws are those of an evaluation with the
    same seed. Raises ConfigError for an n that so few samples cannot give, RewardError if nothing was judged.
    """
    chosen = tuple(ns or powers(samples))
    beyond = [n for n in chosen if not 1 <= n <= samples]
    if beyond:
        raise ConfigError(f"best of {beyond[0]} cannot be estimated from {samples} samples per task: sample more")
    rule = right or Right()
    roller = Roller(
        env_factory=make_env, engine=engine, chat=chat, sampling=sampling, rubric=rubric, max_turns=max_turns
    )
    chooser = Chooser(roller=roller, judge=judge, right=rule, ns=chosen)
    done = 0

    async def one(place: int, task: Task) -> PromptSearch:
        nonlocal done
        found = await _choose(place, task, [evaluation_seed(seed, place, i) for i in range(samples)], chooser)
        done += 1
        if progress is not None:
            progress(done, len(tasks))
        return found

    prompts = await gather_or_cancel(one(place, task) for place, task in enumerate(tasks))
    judged = "the verifier itself" if judge is None else verifier_digest(judge.parts)
    protocol = fingerprint(
        template_hash=chat.template_hash,
        sampling=sampling,
        tasks_digest=tasks.digest,
        task_count=len(tasks),
        verifier=verifier_digest(rubric.parts, f"{rule} after at most {max_turns} turns; chosen by {judged}"),
        samples=samples,
    )
    return summarise_search(
        prompts,
        method="best_of_n",
        fingerprint=protocol,
        settings={
            "samples": samples,
            "judge": "verifier" if judge is None else [part.name for part in judge.parts],
            "kl_bound": {str(n): best_of_n_kl_bound(n) for n in chosen},
        },
        label=label,
        warnings=_oracle(judge),
    )


def powers(samples: int) -> tuple[int, ...]:
    """1, 2, 4 … and the number itself."""
    doubled = [2**i for i in range(samples.bit_length()) if 2**i < samples]
    return (*doubled, samples)


async def _choose(place: int, task: Task, seeds: Sequence[int], chooser: Chooser) -> PromptSearch:
    group, _ = await roll_group(place, task, seeds=seeds, roller=chooser.roller)
    scores = await judged_scores(group.rollouts, task, chooser.judge)
    pairs = [(r, s) for r, s in zip(group.rollouts, scores, strict=True) if s is not None]
    return PromptSearch(
        id=task.id,
        numbers=choices([r for r, _ in pairs], [s for _, s in pairs], chooser.right, chooser.ns),
        cost=Cost(
            tokens=sum(rollout.sampled_count for rollout in group.rollouts),
            completions=sum(rollout.turn_count for rollout in group.rollouts),
            verdicts=len(group.rollouts),
        ),
        failed=len(seeds) - len(pairs),
    )


async def judged_scores(rollouts: Sequence[Rollout], task: Task, judge: Rubric | None) -> list[float | None]:
    """The judge's score of each rollout, None where it failed; without a judge the reward the rollout has."""
    if judge is None:
        return [rollout.reward for rollout in rollouts]
    verdicts = await judge.score([replace(rollout, scores=(), reward=None) for rollout in rollouts], task)
    return [rollout.reward for rollout in verdicts.rollouts]


def choices(rollouts: Sequence[Rollout], scores: Sequence[float], right: Right, ns: Sequence[int]) -> dict[str, float]:
    """How right each way of choosing is on one task's judged samples; an n above their number is left out."""
    if not rollouts:
        return {}
    verdicts = [right(rollout) for rollout in rollouts]
    answers = [right.answer(rollout) for rollout in rollouts]
    known = [n for n in ns if n <= len(rollouts)]
    numbers = {f"best@{n}": expected_best(scores, [float(ok) for ok in verdicts], n) for n in known}
    numbers |= {f"pass@{n}": pass_at_k(len(verdicts), sum(verdicts), n) for n in known}
    numbers["majority"] = majority_vote(answers, verdicts)
    if min(scores) >= 0:
        winner = weighted_vote(answers, scores)
        votes = [ok for ok, answer in zip(verdicts, answers, strict=True) if answer == winner and winner is not None]
        numbers["weighted"] = sum(votes) / len(votes) if votes else 0.0
    return numbers


def _oracle(judge: Rubric | None) -> list[str]:
    if judge is not None:
        return []
    return ["chosen by the verifier itself: best@n is what a perfect judge reaches, not what a reward model would"]
