"""The task's messages, then the end."""

import asyncio

from posttrain.envs.single_turn import Config, SingleTurn
from posttrain.protocols import EnvStep
from tests.rollouts.fakes import make_task


def test_opening_is_the_tasks():
    task = make_task("hello")
    assert task.messages == asyncio.run(SingleTurn(Config()).reset(task))


def test_first_completion_ends_it():
    assert EnvStep(terminated=True) == asyncio.run(SingleTurn(Config()).step({"role": "assistant", "content": ""}))


def test_close_may_be_called_at_any_time():
    assert None is asyncio.run(SingleTurn(Config()).close())
