"""Rollouts, groups and results with the few properties an evaluation looks at."""

from math import nan

from posttrain.evals.fingerprint import Fingerprint
from posttrain.evals.result import EvalResult, PromptResult
from posttrain.evals.summary import summarise
from posttrain.types import Ending, Group, Outcome, Rollout, Score, Segment, Task

PROTOCOL = Fingerprint(
    template_hash="t" * 64,
    sampling={"max_new_tokens": 16, "temperature": 1.0, "stop": []},
    tasks_digest="d" * 64,
    task_count=2,
    verifier="v" * 64,
    samples=4,
)


def score(value: float | None, detail: str = "", *, name: str = "exact", outcome: Outcome | None = None) -> Score:
    """A score; without a value an unparsable one."""
    return Score(
        name=name,
        value=value,
        outcome=outcome or (Outcome.UNPARSABLE, Outcome.SCORED)[value is not None],
        detail=detail,
    )


def rollout(*scores: Score, index: int = 0, tokens: int = 3, ending: Ending = Ending.STOP) -> Rollout:
    """A rollout with two prompt tokens and so many sampled ones."""
    mask = (False, False) + (True,) * tokens
    segment = Segment(
        ids=(5,) * len(mask),
        loss_mask=mask,
        rollout_logprobs=tuple(-1.0 if m else nan for m in mask),
        versions=tuple(0 if m else -1 for m in mask),
        turns=tuple(0 if m else -1 for m in mask),
        prompt_length=2,
    )
    return Rollout(
        task=task(),
        index=index,
        seed=index,
        segments=(segment,),
        messages=(),
        text="",
        ending=ending,
        scores=scores,
        reward=sum(s.value or 0.0 for s in scores),
    )


def task(id: str = "a") -> Task:
    """A task."""
    return Task(id=id, messages=({"role": "user", "content": "1+1"},), answer="2")


def group(*rollouts: Rollout, id: str = "a", failed: int = 0) -> Group:
    """A group of one task."""
    return Group(position=0, task=task(id), rollouts=rollouts, failed=failed)


def prompt(id: str, right: int, samples: int = 4, **changes) -> PromptResult:
    """One prompt's counts."""
    values = {
        "majority": float(2 * right > samples),
        "reward": 0.5,
        "truncated": 1,
        "tokens": 8,
        "answers": 2,
    } | changes
    return PromptResult(id=id, samples=samples, right=right, **values)


def result(*prompts: PromptResult, ks=(1, 2), **changes) -> EvalResult:
    """A result over some prompts."""
    return summarise(prompts, ks=ks, **{"fingerprint": PROTOCOL} | changes)
