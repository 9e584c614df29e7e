"""Step-verifier beam search: write N beams step by step, score the steps, keep the best N / M and continue those.

Snell et al., arXiv 2408.03314 (and Hugging Face's search-and-learn). A step ends at a delimiter; the judge reads the
text so far and its score is the newest step's; a beam's score aggregates its steps (`functional.search.AGGREGATIONS`:
last and min suit search, product punishes length). A finished beam keeps its score and takes no more part; where equal
or finished beams leave fewer than N / M, the rest are continued more often, so that every step writes N. Beams are
token-exact: a row is the prompt's ids and what was sampled, extended, never tokenised again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pydantic import Field, model_validator

from posttrain.config import Settings
from posttrain.evals.best_of_n import choices, judged_scores
from posttrain.evals.fingerprint import fingerprint, verifier_digest
from posttrain.evals.run import TemplatedChat
from posttrain.evals.searched import Cost, PromptSearch, Searched, summarise_search
from posttrain.evals.summary import Right
from posttrain.functional.search import AGGREGATIONS, keep_beams, pick_best
from posttrain.protocols import Engine
from posttrain.rollouts.group import gather_or_cancel
from posttrain.rollouts.rubric import Rubric
from posttrain.rollouts.segments import SegmentBuilder
from posttrain.tasks.order import stable_hash
from posttrain.tasks.taskset import TaskSet
from posttrain.types import Completion, Ending, Rollout, Sampling, Task


class StepSearch(Settings):
    """How to search."""

    beams: int = Field(4, gt=0)
    """N: beams written at each step."""
    expansions: int = Field(4, gt=0)
    """M: at least so many continuations of each kept beam; at most N / M different ones are kept."""
    delimiter: str = Field("\n", min_length=1)
    """Text that ends a step."""
    max_steps: int = Field(16, gt=0)
    """Steps after which a beam counts as finished."""
    aggregate: str = "last"
    """How step scores become a beam's score: min, product, last, mean or log_odds."""

    @model_validator(mode="after")
    def _divides(self) -> StepSearch:
        if self.beams % self.expansions:
            raise ValueError(f"expansions must divide beams; got {self.beams} beams, {self.expansions} expansions")
        if self.aggregate not in AGGREGATIONS:
            raise ValueError(f"aggregate is one of {', '.join(AGGREGATIONS)}; got {self.aggregate!r}")
        return self


@dataclass(frozen=True, kw_only=True, slots=True)
class Beam:
    """One path: what was sampled so far and what the judge said of each step."""

    ids: tuple[int, ...] = ()
    """Sampled ids."""
    logprobs: tuple[float, ...] = ()
    """Their log-probabilities."""
    versions: tuple[int, ...] = ()
    """Version of the weights that sampled each."""
    scores: tuple[float, ...] = ()
    """One per step."""
    ending: Ending | None = None
    """How it ended; None while it is alive."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Searcher:
    """What every task's search shares."""

    engine: Engine
    chat: TemplatedChat
    judge: Rubric
    rubric: Rubric
    right: Right
    sampling: Sampling
    settings: StepSearch
    seed: int


async def step_search(
    tasks: TaskSet,
    *,
    engine: Engine,
    chat: TemplatedChat,
    rubric: Rubric,
    judge: Rubric,
    sampling: Sampling,
    settings: StepSearch,
    seed: int,
    right: Right | None = None,
    progress: Callable[[int, int], None] | None = None,
    label: str = "",
) -> Searched:
    """Search every task and return how right the best beam, the votes and any beam are, with the compute it took.

    ``judge`` scores partial texts (a process reward model, or a rule as a reward function), ``rubric`` verifies the
    final answers only. ``sampling.max_new_tokens`` bounds a whole beam. Raises RewardError if nothing was judged.
    """
    rule = right or Right()
    searcher = Searcher(
        engine=engine,
        chat=chat,
        judge=judge,
        rubric=rubric,
        right=rule,
        sampling=replace(sampling, stop=(*sampling.stop, settings.delimiter)),
        settings=settings,
        seed=seed,
    )
    done = 0

    async def one(place: int, task: Task) -> PromptSearch:
        nonlocal done
        found = await _search(place, task, searcher)
        done += 1
        if progress is not None:
            progress(done, len(tasks))
        return found

    prompts = await gather_or_cancel(one(place, task) for place, task in enumerate(tasks))
    how = settings.model_dump()
    protocol = fingerprint(
        template_hash=chat.template_hash,
        sampling=sampling,
        tasks_digest=tasks.digest,
        task_count=len(tasks),
        verifier=verifier_digest(rubric.parts, f"{rule}; searched with {how} by {verifier_digest(judge.parts)}"),
        samples=settings.beams,
    )
    shown = how | {"judge": [part.name for part in judge.parts]}
    return summarise_search(prompts, method="step_search", fingerprint=protocol, settings=shown, label=label)


async def _search(place: int, task: Task, searcher: Searcher) -> PromptSearch:
    """One task: write, judge, prune, expand, until nothing lives or enough is finished."""
    settings = searcher.settings
    prompt = searcher.chat.prompt_ids(task.messages)
    alive, finished, cost, failed = [Beam()] * settings.beams, list[Beam](), Cost(), 0
    for step in range(settings.max_steps):
        written = await asyncio.gather(
            *[
                _write(beam, prompt, searcher, stable_hash("step search", searcher.seed, place, step, slot))
                for slot, beam in enumerate(alive)
            ]
        )
        grown = [len(new.ids) - len(old.ids) for new, old in zip(written, alive, strict=True)]
        cost += Cost(tokens=sum(grown), completions=sum(n > 0 for n in grown), verdicts=len(written))
        scores = await judged_scores(
            [_rollout(b, prompt, task, i, searcher) for i, b in enumerate(written)], task, searcher.judge
        )
        judged = [replace(b, scores=(*b.scores, s)) for b, s in zip(written, scores, strict=True) if s is not None]
        failed += len(written) - len(judged)
        finished += [beam for beam in judged if beam.ending is not None]
        alive = _expanded([beam for beam in judged if beam.ending is None], searcher)
        if not alive or len(finished) >= settings.beams:
            alive = []
            break
    cut = [replace(beam, ending=Ending.LENGTH) for beam in dict.fromkeys(alive)]
    numbers = await _numbers([*finished, *cut], prompt, task, searcher)
    return PromptSearch(id=task.id, numbers=numbers, cost=cost, failed=failed)


async def _write(beam: Beam, prompt: Sequence[int], searcher: Searcher, seed: int) -> Beam:
    """The beam with one more step; it is finished by a stop token, a stop string of the user's, or a full budget."""
    row = (*prompt, *beam.ids)
    room = min(searcher.sampling.max_new_tokens - len(beam.ids), searcher.engine.window - len(row))
    if room < 1:
        return replace(beam, ending=Ending.LENGTH)
    new = await searcher.engine.generate(row, replace(searcher.sampling, max_new_tokens=room), seed=seed)
    step = searcher.chat.decode(new.ids)
    goes_on = new.ending is Ending.STOP_STRING and searcher.settings.delimiter in step
    return replace(
        beam,
        ids=beam.ids + new.ids,
        logprobs=beam.logprobs + new.rollout_logprobs,
        versions=beam.versions + new.versions,
        ending=None if goes_on else new.ending,
    )


def _expanded(beams: Sequence[Beam], searcher: Searcher) -> list[Beam]:
    """The best different beams in turn, until all N places are taken."""
    if not beams:
        return []
    settings = searcher.settings
    texts = [searcher.chat.decode(beam.ids) for beam in beams]
    kept = keep_beams([_score(b, settings) for b in beams], texts, width=settings.beams // settings.expansions)
    return [beams[kept[place % len(kept)]] for place in range(settings.beams)]


def _score(beam: Beam, settings: StepSearch) -> float:
    return AGGREGATIONS[settings.aggregate](beam.scores)


def _rollout(beam: Beam, prompt: Sequence[int], task: Task, index: int, searcher: Searcher) -> Rollout:
    """The beam as what rewards score; an unfinished one is like an answer that was cut off."""
    row = SegmentBuilder(prompt)
    ending = beam.ending or Ending.LENGTH
    completion = Completion(ids=beam.ids, rollout_logprobs=beam.logprobs, versions=beam.versions, ending=ending)
    row.append_completion(completion, 0)
    text = searcher.chat.decode(beam.ids)
    return Rollout(
        task=task,
        index=index,
        seed=searcher.seed,
        segments=(row.build(),),
        messages=(*task.messages, {"role": "assistant", "content": text}),
        text=text,
        ending=ending,
    )


async def _numbers(beams: Sequence[Beam], prompt: Sequence[int], task: Task, searcher: Searcher) -> dict[str, float]:
    """How right the best beam is, the votes, and any beam."""
    if not beams:
        return {}
    rollouts = [_rollout(beam, prompt, task, i, searcher) for i, beam in enumerate(beams)]
    verdicts = await searcher.rubric.score(rollouts, task)
    pairs = [
        (rollout, _score(beam, searcher.settings))
        for rollout, beam in zip(verdicts.rollouts, beams, strict=True)
        if rollout.reward is not None
    ]
    if not pairs:
        return {}
    found, scores = [r for r, _ in pairs], [s for _, s in pairs]
    voted = choices(found, scores, searcher.right, (1,))
    best = float(searcher.right(found[pick_best(scores)]))
    any_right = float(any(map(searcher.right, found)))
    return {"best": best, "any": any_right} | {name: voted[name] for name in ("majority", "weighted") if name in voted}
