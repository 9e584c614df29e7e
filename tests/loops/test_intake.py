"""Filling a thinned batch: how much is drawn, what trains, what waits, what is too old."""

import asyncio
import dataclasses
import math

import pytest

from posttrain.functional.dynamic_sampling import valid_probability
from posttrain.loops import sync
from posttrain.loops.intake import Intake, oldest_version, split_by_age
from posttrain.records.ledger import State as Place
from posttrain.rollouts.group import Tally
from tests.algorithms.family import group_of, rollout, segment
from tests.loops.sessions import open_session
from tests.rollouts.fakes import FakeReward
from tests.toy_runs import Listener


def group(position, *rewards, version=0):
    row = segment([1, 1])
    row = dataclasses.replace(row, versions=(-1, version, version))
    return group_of(*(rollout(i, r, row) for i, r in enumerate(rewards)), position=position)


def good(position, **options):
    return group(position, 1.0, 0.0, 0.0, 1.0, **options)


def all_right(position):
    return group(position, 1.0, 1.0, 1.0, 1.0)


def all_wrong(position):
    return group(position, 0.0, 0.0, 0.0, 0.0)


def intake(target=4, draws=10, **options):
    given = {"keep": lambda group: len(set(group.rewards)) > 1, "position": 0} | options
    return Intake(target=target, draws=draws, **given)


def filled(one, *draws):
    for groups in draws:
        one.drawn += [(g.position, g.task) for g in groups]
        one.add(groups, Tally(rollouts=sum(len(g.rollouts) for g in groups), kept=sum(len(g.rollouts) for g in groups)))
    return one


def test_a_full_batch_is_one_draw():
    one = filled(intake(), [good(p) for p in range(4)])
    assert (False, [0, 1, 2, 3], ()) == (one.hungry, [g.position for g in one.counted], one.surplus)


def test_the_first_draw_asks_for_what_is_missing():
    assert 4 == intake().wanted
    assert 3 == intake(carried=(good(0),)).wanted


def test_a_later_draw_asks_for_more_by_the_share_that_passes():
    one = filled(intake(), [good(0), good(1), all_right(2), all_wrong(3)])
    assert (True, math.ceil(2 / (3 / 6))) == (one.hungry, one.wanted)


def test_a_draw_is_never_larger_than_a_batch():
    assert 4 == filled(intake(), [all_wrong(p) for p in range(4)]).wanted


def test_the_draws_are_bounded():
    one = filled(intake(draws=2), [all_wrong(0)], [all_wrong(1)])
    assert (False, []) == (one.hungry, one.counted)


def test_without_refill_there_is_one_draw():
    assert not filled(intake(draws=1), [all_wrong(p) for p in range(4)]).hungry


def test_groups_train_in_the_order_they_were_asked_for_and_the_rest_waits():
    one = filled(intake(carried=(good(0),)), [good(1), all_right(2), good(3)], [good(4), good(5), good(6)])
    assert [0, 1, 3, 4] == [g.position for g in one.counted]
    assert [5, 6] == [g.position for g in one.surplus]


def test_every_position_is_trained_dropped_or_waiting():
    one = filled(intake(carried=(good(0),), stale=(good(9),)), [good(1), all_right(2)], [good(3), good(4), good(5)])
    trained, waiting = [g.position for g in one.counted], [g.position for g in one.surplus]
    assert sorted([0, 9, *(p for p, _ in one.drawn)]) == sorted([*trained, *waiting, *one.dropped])
    assert [9, 2] == one.dropped


def test_what_waits_is_not_settled():
    one = filled(intake(target=1), [good(0), good(1)])
    assert [0] == [g.position for g in one.settled]


def test_the_surplus_stays_smaller_than_a_batch():
    one = intake(target=3)
    position = 0
    while one.hungry:
        wanted = one.wanted
        filled(one, [(good if (position + n) % 4 else all_wrong)(position + n) for n in range(wanted)])
        position += wanted
    assert len(one.surplus) < 3


def test_an_empty_group_is_never_kept():
    one = filled(intake(keep=lambda group: True), [group(0)])
    assert [] == one.counted


def test_the_accounting_is_the_golden_one():
    first = [good(0), all_right(1), good(2), all_right(3), all_right(4), all_wrong(5)]
    second = [good(6), good(7), group(8, 1.0, 0.0, 1.0, 0.0), all_right(9), all_wrong(10), all_wrong(11)]
    numbers = filled(intake(), first, second).numbers()
    expected = {
        "groups/trained": 4,
        "groups/surplus": 1,
        "rollouts/count": 48,
        "groups/solve_all": 4,
        "groups/solve_none": 3,
        "groups/draws": 2,
        "reward/trained": 0.5,
        "groups/dropped": 7,
    }
    assert expected == {name: numbers[name] for name in expected}
    assert 5 / 12 == pytest.approx(numbers["groups/acceptance"])


def test_an_algorithm_that_does_not_refill_only_counts_what_it_dropped():
    assert {"groups/dropped": 1.0} == filled(intake(draws=1), [good(0), all_wrong(1)]).numbers()


def test_a_group_is_as_old_as_its_oldest_token():
    rows = [dataclasses.replace(segment([1, 1]), versions=(-1, a, b)) for a, b in ((3, 3), (4, 2))]
    assert 2 == oldest_version(group_of(*(rollout(i, 0.0, row) for i, row in enumerate(rows))))


@pytest.mark.parametrize(("bound", "young"), [(0, [2]), (1, [1, 2]), (2, [0, 1, 2])])
def test_old_surplus_is_told_apart(bound, young):
    surplus = [good(p, version=p + 3) for p in range(3)]
    fresh, stale = split_by_age(surplus, 5, bound)
    assert (young, 3) == ([g.position for g in fresh], len(fresh) + len(stale))


def half(rollout):
    """Passes or fails by its text alone; a group of four is all alike about once in eight."""
    return float(sum(map(ord, rollout.text)) % 2)


def spoilt(rollout):
    """The same, but all of a task's rollouts are right where the task's text says so."""
    return 1.0 if sum(map(ord, rollout.task.id)) % 2 else half(rollout)


@pytest.fixture
def told():
    return Listener()


def train(path, told, *, steps=6, reward=spoilt, kind="dapo", **sections):
    options = {"rollouts": {"prompts_per_step": 3, "max_new_tokens": 4}, "run": {"steps": steps}} | sections
    with open_session(path, kind, progress=told, **options) as session:
        parts = tuple(dataclasses.replace(p, reward=FakeReward(reward)) for p in session.rubric.parts)
        session.rubric = type(session.rubric)(parts)
        asyncio.run(sync.train(session))
        return session, session.journal.run.metrics.read(), session.journal.run.ledger.entries()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Session, records and ledger of one run."""
    return train(tmp_path_factory.mktemp("intake") / "run", Listener())


def test_a_run_fills_every_batch_and_loses_nothing(run):
    session, records, entries = run
    trained = [r.metrics["groups/trained"] for r in records]
    assert [3.0] * 6 == trained
    assert list(range(session.state.position)) == [e.position for e in entries]
    waiting = {g.position for g in session.surplus}
    assert waiting == {e.position for e in entries if e.state is Place.SCORED}
    assert 18 == sum(e.state is Place.TRAINED for e in entries)


def test_surplus_trains_in_a_later_batch_and_once(run):
    session, records, _ = run
    assert any(r.metrics["groups/carried"] for r in records)
    stored = [g.position for r in records for g in session.journal.run.rollouts.read(r.step)]
    assert sorted(set(stored)) == sorted(stored)


def test_carried_groups_are_one_version_old(run):
    _, records, _ = run
    assert {1.0 if r.metrics["groups/carried"] else 0.0 for r in records} >= {
        r.metrics["staleness/max"] for r in records
    }


def test_without_patience_surplus_is_dropped_and_counted(tmp_path, told):
    options = {"rollouts": {"prompts_per_step": 3, "max_new_tokens": 4, "surplus_staleness": 0}}
    _, records, _ = train(tmp_path / "run", told, **options)
    assert 0 == sum(r.metrics["groups/carried"] for r in records)
    assert sum(r.metrics["groups/surplus"] for r in records[:-1]) == sum(r.metrics["groups/stale"] for r in records)


def test_a_batch_that_cannot_be_filled_says_so(tmp_path, told):
    _, records, _ = train(
        tmp_path / "run", told, steps=1, reward=lambda r: 1.0, algorithm={"type": "dapo", "refills": 2}
    )
    numbers = records[0].metrics
    assert (0.0, 3.0, 9.0) == (numbers["groups/trained"], numbers["groups/draws"], numbers["groups/solve_all"])
    assert any("0 of 3 groups after 3 draws" in note for (note,) in told.of("note"))


def test_reward_before_the_filter_is_the_one_reported(run):
    _, records, _ = run
    before, after = (sum(r.metrics[name] for r in records) / 6 for name in ("reward/mean", "reward/trained"))
    assert before > after


def test_acceptance_is_what_the_formula_says():
    assert 0.875 == valid_probability(0.5, 4)
