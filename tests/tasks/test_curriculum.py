"""Tasks that are solved always or never rest for some passes, and come back."""

import asyncio
import dataclasses

import pytest

from posttrain.config import Curriculum
from posttrain.errors import ConfigError
from posttrain.loops import sync
from posttrain.settings import validate
from posttrain.tasks.curriculum import Rests
from tests.loops.sessions import open_session
from tests.rollouts.fakes import FakeReward


def rests(**options):
    return Rests(Curriculum(**options))


def test_nothing_rests_at_first():
    assert not rests().resting(3, 0)


@pytest.mark.parametrize(("rate", "passes"), [(1.0, 4), (0.95, 4), (0.94, 0), (0.5, 0), (0.01, 0), (0.0, 1)])
def test_a_task_rests_by_its_pass_rate(rate, passes):
    one = rests()
    one.observe(3, 2, rate)
    assert [3 + n for n in range(passes)] == [epoch for epoch in range(3, 12) if one.resting(3, epoch)]


def test_other_tasks_do_not_rest():
    one = rests()
    one.observe(3, 0, 1.0)
    assert not one.resting(2, 1)


def test_a_task_that_became_mixed_no_longer_rests():
    one = rests()
    one.observe(3, 0, 0.0)
    one.observe(3, 0, 0.5)
    assert not one.resting(3, 1)


def test_resting_tasks_are_counted():
    one = rests()
    one.observe(1, 0, 1.0)
    one.observe(2, 0, 0.0)
    assert [2, 2, 1, 1, 1, 0] == [one.count(epoch) for epoch in range(6)]


def test_the_state_comes_back():
    one, other = rests(), rests()
    one.observe(1, 0, 1.0)
    one.observe(2, 5, 0.0)
    other.restore(one.state())
    assert ({"1": 5, "2": 7}, one.state()) == (one.state(), other.state())


def test_bounds_in_the_wrong_order_are_refused():
    with pytest.raises(ConfigError, match=r"hard = 0\.9 must be below easy = 0\.5"):
        validate(Curriculum, {"easy": 0.5, "hard": 0.9}, where="test")


def drawn(path, reward, *, steps=8, **section):
    """(Pass, task index) of all that was drawn in a run over eight tasks, two at a time, and the last numbers."""
    with open_session(path, "dr_grpo", run={"steps": steps}) as session:
        session.rests = Rests(Curriculum(**section))
        parts = tuple(dataclasses.replace(p, reward=FakeReward(reward)) for p in session.rubric.parts)
        session.rubric = type(session.rubric)(parts)
        asyncio.run(sync.train(session))
        entries = session.journal.run.ledger.entries()
        last = session.journal.run.metrics.read()[-1].metrics
        return [(e.epoch, session.order.index(e.position)) for e in entries], last


def solved(rollout):
    """Tasks of even sum are always right, the others half the time."""
    return 1.0 if int(rollout.task.answer[0]) % 2 else float(rollout.index % 2)


def test_solved_tasks_are_left_out_of_the_next_passes(tmp_path):
    found, numbers = drawn(tmp_path / "run", solved, steps=6, easy_rest=2)
    first = {index for epoch, index in found if epoch == 0}
    second = {index for epoch, index in found if epoch == 1}
    assert set(range(8)) == first
    assert second < first
    assert 8 - len(second) == numbers["tasks/resting"]


def test_when_everything_rests_the_order_goes_on_where_something_is_due(tmp_path):
    found, _ = drawn(tmp_path / "run", lambda rollout: 1.0, steps=5, easy_rest=3)
    assert [(0, 8), (4, 2)] == [(epoch, sum(e == epoch for e, _ in found)) for epoch in (0, 4)]


def test_without_rest_nothing_is_left_out(tmp_path):
    found, _ = drawn(tmp_path / "run", lambda rollout: 1.0, easy_rest=0)
    assert [8, 8] == [sum(e == epoch for e, _ in found) for epoch in (0, 1)]


def test_the_state_is_in_the_checkpoint_and_comes_back(tmp_path):
    with open_session(tmp_path / "run", "dr_grpo", run={"steps": 1, "checkpoint_every": 1}) as session:
        session.rests = Rests(Curriculum())
        session.rests.observe(3, 0, 1.0)
        session.checkpoint()
        found, _ = session.journal.resume(session.learner)
        session.rests = Rests(Curriculum())
        session.restore(found.state)
        assert session.rests.resting(3, 1)
