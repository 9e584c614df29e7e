"""The script, then the end with its scores."""

import asyncio

from posttrain.envs.scripted import Config, Scripted
from posttrain.protocols import EnvStep
from tests.rollouts.fakes import make_task

SAID = {"role": "assistant", "content": "x"}


def steps(count, **options):
    env = Scripted(Config(**options))
    return [asyncio.run(env.step(SAID)) for _ in range(count)]


def test_opening_is_the_tasks():
    task = make_task("hello")
    assert task.messages == asyncio.run(Scripted(Config()).reset(task))


def test_without_replies_the_first_completion_ends_it():
    assert [EnvStep(terminated=True)] == steps(1)


def test_replies_in_order_and_then_the_end():
    first, second, third = steps(3, replies=("one", "two"))
    assert ["one", "two"] == [first.reply[0]["content"], second.reply[0]["content"]]
    assert (False, False, True) == (first.terminated, second.terminated, third.terminated)


def test_role_of_the_replies():
    assert "tool" == steps(1, replies=("one",), role="tool")[0].reply[0]["role"]


def test_scores_come_with_the_end():
    assert [None, {"won": 1.0}] == [step.scores for step in steps(2, replies=("one",), scores={"won": 1.0})]


def test_end_by_a_limit():
    assert [EnvStep(truncated=True)] == steps(1, truncate=True)
