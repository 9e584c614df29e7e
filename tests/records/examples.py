"""Small rollouts and recipes for the tests of records."""

import math

import numpy as np

from posttrain import config
from posttrain.types import Ending, Group, Outcome, Rollout, Sample, Score, Segment, Task

TASK = Task(
    id="sum-1",
    messages=({"role": "user", "content": "1+1="},),
    answer="2",
    columns={"level": 3, "words": ["a", "b"]},
    source="sums",
)


def build_segment(ids=(5, 6, 7, 8), prompt_length=2):
    sampled = range(prompt_length, len(ids))
    return Segment(
        ids=tuple(ids),
        loss_mask=tuple(i in sampled for i in range(len(ids))),
        rollout_logprobs=tuple(-0.1 * i if i in sampled else math.nan for i in range(len(ids))),
        versions=tuple(3 if i in sampled else -1 for i in range(len(ids))),
        turns=tuple(0 if i in sampled else -1 for i in range(len(ids))),
        prompt_length=prompt_length,
    )


def build_rollout(index=0, *, reward=1.0, segments=None, **changes):
    values = {
        "task": TASK,
        "index": index,
        "seed": 2**63 + index,
        "segments": segments or (build_segment((5, 6, 7, 8 + index)),),
        "messages": (*TASK.messages, {"role": "assistant", "content": "2"}),
        "text": "2",
        "ending": Ending.STOP,
        "scores": (Score(name="exact", value=reward, outcome=Outcome.SCORED, detail="read '2'"),),
        "reward": reward,
    }
    return Rollout(**(values | changes))


def build_group(position=0, *, rewards=(1.0, 0.0), failed=0):
    rollouts = tuple(build_rollout(i, reward=reward) for i, reward in enumerate(rewards))
    return Group(position=position, task=TASK, rollouts=rollouts, failed=failed)


def build_sample(position, rollout, segment, **columns):
    length = len(segment.ids)
    return Sample(
        ids=np.array(segment.ids, np.int64),
        loss_mask=np.array(segment.loss_mask),
        prompt_length=segment.prompt_length,
        group=position,
        rollout=rollout,
        advantages=columns.pop("advantages", np.full(length, 0.5)),
        rollout_logprobs=np.array(segment.rollout_logprobs),
        versions=np.array(segment.versions),
        turns=np.array(segment.turns),
        **columns,
    )


def build_recipe():
    return config.Recipe(
        model=config.Model(path="toy"),
        tasks=config.Tasks(generator="addition"),
        algorithm=config.Plug(type="grpo"),
    )
