"""Fakes of the sockets: an engine with a script, a chat of one token per character, rewards from a function."""

import asyncio
import math

from posttrain.protocols import EnvStep
from posttrain.types import Completion, Ending, Outcome, Score, Task

STOP = 0


class FakeEngine:
    """Says scripted texts in the order of requests; a prompt's text can be looked up instead."""

    def __init__(self, replies, *, window=1000, delays=(), ending=Ending.STOP):
        self.replies = list(replies)
        self.delays = list(delays)
        self.window = window
        self.version = 3
        self.ending = ending
        self.requests = []

    async def generate(self, prompt_ids, sampling, *, seed):
        number = len(self.requests)
        self.requests.append((tuple(prompt_ids), sampling, seed))
        reply = self.replies[number % len(self.replies)]
        await asyncio.sleep(self.delays[number % len(self.delays)] if self.delays else 0)
        if isinstance(reply, BaseException):
            raise reply
        if isinstance(reply, Completion):
            return reply
        return complete(reply, self.version + number, self.ending)


def complete(text, version=3, ending=Ending.STOP):
    ids = (*map(ord, text), STOP) if ending is Ending.STOP else tuple(map(ord, text))
    return Completion(
        ids=ids,
        rollout_logprobs=tuple(-0.5 - i for i in range(len(ids))),
        versions=(version,) * len(ids),
        ending=ending,
    )


class FakeChat:
    """``<role>text`` per message, a token per character, the stop token after each; bridges unless told not to."""

    stop_ids = frozenset({STOP})

    def __init__(self, *, bridges=True):
        self.bridges = bridges

    def prompt_ids(self, messages, tools=None):
        ids = []
        for message in messages:
            ids += [*map(ord, f"<{message['role'][0]}>{message['content']}"), STOP]
        return (*ids, *map(ord, "<a>"))

    def decode(self, ids):
        return "".join(chr(i) for i in ids if i != STOP)

    def bridge(self, ids, reply):
        if not self.bridges:
            return None
        closed = tuple(ids) if ids[-1] == STOP else (*ids, STOP)
        return closed + self.prompt_ids(reply)


class RecordingEnv:
    """Answers from a list of steps and notes what it was shown and whether it was closed."""

    def __init__(self, steps=(), *, fail=""):
        self.steps = list(steps) or [EnvStep(terminated=True)]
        self.fail = fail
        self.seen = []
        self.closed = 0

    async def reset(self, task):
        if self.fail == "reset":
            raise OSError("no display")
        return task.messages

    async def step(self, message):
        if self.fail == "step":
            raise OSError("no display")
        self.seen.append(message)
        return self.steps[len(self.seen) - 1]

    async def close(self):
        self.closed += 1
        if self.fail == "close":
            raise OSError("no display")


class FakeReward:
    """Scores by ``function(rollout) -> value, Outcome or Score``; counts its calls."""

    def __init__(self, function, name="fake"):
        self.function = function
        self.name = name
        self.calls = 0

    async def score(self, rollouts, task):
        self.calls += 1
        return [self._one(self.function(rollout)) for rollout in rollouts]

    def _one(self, given):
        if isinstance(given, Score):
            return given
        if isinstance(given, Outcome):
            return Score(name="x", value=None, outcome=given, detail="told so")
        return Score(name="x", value=given, outcome=Outcome.SCORED)


def make_task(text="hi", answer="ok"):
    return Task(id=text, messages=({"role": "user", "content": text},), answer=answer)


def is_nan(values):
    return [math.isnan(value) for value in values]
