"""A world of digits for searches: a task asks to copy its digits, a step is a digit and a comma."""

import asyncio

import torch

from posttrain.functional.counter import uniform
from posttrain.protocols import EnvStep
from posttrain.rollouts.rubric import Part, Rubric
from posttrain.tasks.taskset import TaskSet
from posttrain.types import Completion, Ending, Outcome, Score, Task

COMMA, STOP = 10, 11
WORDS = [*"0123456789", ",", ""]


def tasks(*texts):
    return TaskSet(
        tasks=tuple(Task(id=t, messages=({"role": "user", "content": t},), answer=",".join(t)) for t in texts),
        name="digits",
    )


class DigitChat:
    """Token id = digit, 10 a comma, 11 the end."""

    template_hash = "c" * 64

    def prompt_ids(self, messages):
        return (*(int(c) for c in messages[0]["content"]), STOP)

    def decode(self, ids):
        return "".join(WORDS[i] for i in ids)

    def bridge(self, ids, reply):
        return None


class Guesser:
    """Writes a step or an answer: each digit is right with probability ``skill``, drawn from the seed and the place."""

    version, window = 0, 64

    def __init__(self, skill=0.5):
        self.skill = skill
        self.calls = []

    async def generate(self, prompt_ids, sampling, *, seed):
        self.calls.append((tuple(prompt_ids), sampling, seed))
        await asyncio.sleep(0)
        end = prompt_ids.index(STOP)
        wanted, row, ids = prompt_ids[:end], list(prompt_ids[end + 1 :]), []
        while len(ids) < sampling.max_new_tokens:
            place, odd = divmod(len(row), 2)
            token = (
                self._digit(wanted[place], seed, len(row)) if not odd else COMMA if place + 1 < len(wanted) else STOP
            )
            ids.append(token)
            row.append(token)
            if token == STOP:
                return self._completion(ids, Ending.STOP)
            if token == COMMA and "," in sampling.stop:
                return self._completion(ids, Ending.STOP_STRING)
        return self._completion(ids, Ending.LENGTH)

    async def load(self, tensors, version):
        raise AssertionError("a search loads no weights")

    def _digit(self, right, seed, place):
        drawn = draw(seed, place)
        return right if drawn < self.skill else (right + 1) % 10

    def _completion(self, ids, ending):
        return Completion(ids=tuple(ids), rollout_logprobs=(-0.5,) * len(ids), versions=(0,) * len(ids), ending=ending)


def draw(seed, place):
    return float(uniform(torch.tensor([seed % 2**62]), torch.tensor([place])))


class Single:
    """One question, one answer."""

    async def reset(self, task):
        return task.messages

    async def step(self, message):
        return EnvStep(terminated=True)

    async def close(self):
        pass


class Equal:
    """The verifier: the whole text is the answer."""

    name = "equal"

    async def score(self, rollouts, task):
        return [
            Score(name=self.name, value=float(r.text == task.answer), outcome=Outcome.SCORED, detail=r.text)
            for r in rollouts
        ]


class Prefix:
    """A judge of unfinished answers: 1 while the text is a beginning of the answer; keeps what it read."""

    name = "prefix"

    def __init__(self, function=None):
        self.read = []
        self.function = function or (lambda text, task: float(task.answer.startswith(text)))

    async def score(self, rollouts, task):
        self.read += [r.text for r in rollouts]
        values = [self.function(r.text, task) for r in rollouts]
        return [Score(name=self.name, value=v, outcome=Outcome.FAILED if v is None else Outcome.SCORED) for v in values]


def rubric(reward=None):
    reward = reward or Equal()
    return Rubric([Part(reward=reward, name=reward.name, attempts=1)])
