"""Rollouts by hand: a text is enough."""

import asyncio
from collections.abc import Sequence

from posttrain.types import Ending, Rollout, Score, Segment, Task


def make_task(answer: str | None = "42", **columns) -> Task:
    return Task(id="t", messages=({"role": "user", "content": "Question?"},), answer=answer, columns=columns)


def make_rollout(text: str, task: Task | None = None, *, index: int = 0, sampled: int = 3) -> Rollout:
    task = task or make_task()
    segment = Segment(
        ids=(7, *range(10, 10 + sampled)),
        loss_mask=(False, *[True] * sampled),
        rollout_logprobs=(float("nan"), *[-1.0] * sampled),
        versions=(-1, *[0] * sampled),
        turns=(-1, *[0] * sampled),
        prompt_length=1,
    )
    return Rollout(
        task=task,
        index=index,
        seed=100 + index,
        segments=(segment,),
        messages=(*task.messages, {"role": "assistant", "content": text}),
        text=text,
        ending=Ending.STOP,
    )


def score_all(reward, texts: Sequence[str], answer: str | None = "42", **columns) -> list[Score]:
    """Score completions of one task."""
    task = make_task(answer, **columns)
    rollouts = [make_rollout(text, task, index=i) for i, text in enumerate(texts)]
    return list(asyncio.run(reward.score(rollouts, task)))


def score_one(reward, text: str, answer: str | None = "42", **columns) -> Score:
    return score_all(reward, [text], answer, **columns)[0]
