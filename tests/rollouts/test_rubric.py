"""Parts to a reward: weights, gates, unparsable answers, retries, and what never becomes a number."""

import asyncio
import math

import pytest

from posttrain.errors import ConfigError, DataError
from posttrain.rollouts.rubric import Part, Rubric
from posttrain.types import Outcome, Score
from tests.rewards.rollouts import make_rollout, make_task
from tests.rollouts.fakes import FakeReward


def part(function, name="a", **options):
    return Part(reward=FakeReward(function), name=name, **options)


def score(*parts, texts=("x",)):
    task = make_task()
    rollouts = [make_rollout(text, task, index=i) for i, text in enumerate(texts)]
    return asyncio.run(Rubric(parts).score(rollouts, task))


def rewards(*parts, texts=("x",)):
    return [rollout.reward for rollout in score(*parts, texts=texts).rollouts]


def test_weighted_sum():
    assert [2.0 * 1.0 + -0.5 * 3.0] == rewards(
        part(lambda r: 1.0, "a", weight=2.0), part(lambda r: 3.0, "b", weight=-0.5)
    )


def test_every_part_is_recorded_by_its_name():
    (rollout,) = score(part(lambda r: 1.0, "a"), part(lambda r: 3.0, "b", weight=0.0)).rollouts
    assert [("a", 1.0), ("b", 3.0)] == [(s.name, s.value) for s in rollout.scores]


def test_rollouts_keep_their_order():
    assert [1.0, 2.0, 3.0] == rewards(part(lambda r: len(r.text)), texts=("a", "ab", "abc"))


def test_part_that_does_not_apply_is_left_out():
    assert [5.0] == rewards(part(lambda r: None, "a"), part(lambda r: 5.0, "b"))


def test_rollout_to_which_no_part_applies_has_no_reward_and_is_counted():
    verdicts = score(part(lambda r: None, "a"))
    assert (None, 1) == (verdicts.rollouts[0].reward, verdicts.inapplicable)


def test_unparsable_gets_zero_by_default():
    assert [0.0] == rewards(part(lambda r: Outcome.UNPARSABLE))


def test_unparsable_gets_the_parts_value():
    (rollout,) = score(part(lambda r: Outcome.UNPARSABLE, unparsable=-1.0, weight=2.0)).rollouts
    assert (-2.0, -1.0, Outcome.UNPARSABLE) == (rollout.reward, rollout.scores[0].value, rollout.scores[0].outcome)


@pytest.mark.parametrize("outcome", [Outcome.TIMEOUT, Outcome.FAILED])
def test_infrastructure_failure_is_never_a_number(outcome):
    (rollout,) = score(part(lambda r: outcome), part(lambda r: 1.0, "b")).rollouts
    assert (None, None, outcome) == (rollout.reward, rollout.scores[0].value, rollout.scores[0].outcome)


def test_failure_of_one_rollout_spares_the_others():
    assert [1.0, None, 1.0] == rewards(
        part(lambda r: Outcome.FAILED if r.text == "bad" else 1.0), texts=("x", "bad", "y")
    )


def test_outcomes_are_counted_by_part():
    verdicts = score(part(lambda r: Outcome.FAILED if r.text == "bad" else 1.0), texts=("x", "bad", "y"))
    assert {"a": {Outcome.SCORED: 2, Outcome.FAILED: 1}} == verdicts.outcomes


def test_reasons_are_kept():
    assert ("a: told so",) == score(part(lambda r: Outcome.FAILED)).reasons


def flaky(times):
    state = {"left": times}

    def judge(rollout):
        if rollout.text == "bad" and state["left"]:
            state["left"] -= 1
            return Outcome.TIMEOUT
        return float(len(rollout.text))

    return judge


def test_failure_is_tried_again():
    verdicts = score(part(flaky(1)), texts=("x", "bad"))
    assert ([1.0, 3.0], {"a": 1}) == ([r.reward for r in verdicts.rollouts], verdicts.retries)


def test_tries_end_with_attempts():
    assert [1.0, None] == rewards(part(flaky(2), attempts=2), texts=("x", "bad"))


def test_attempts_of_one_try_once():
    judge = FakeReward(lambda r: Outcome.FAILED)
    score(Part(reward=judge, name="a", attempts=1))
    assert 1 == judge.calls


def test_success_is_not_tried_again():
    judge = FakeReward(lambda r: 1.0)
    score(Part(reward=judge, name="a", attempts=5))
    assert 1 == judge.calls


def test_unparsable_is_not_tried_again():
    judge = FakeReward(lambda r: Outcome.UNPARSABLE)
    score(Part(reward=judge, name="a", attempts=5))
    assert 1 == judge.calls


def test_a_retry_sees_the_whole_group_and_changes_only_what_failed():
    """A reward that compares rollouts would rank one rollout first if it were tried alone."""
    calls = []

    class Ranks:
        name = "ranks"

        async def score(self, rollouts, task):
            calls.append(len(rollouts))
            first = len(calls) == 1
            return [
                Score(name="", value=None, outcome=Outcome.FAILED)
                if first and i == 1
                else Score(name="", value=float(10 * len(calls) + i), outcome=Outcome.SCORED)
                for i in range(len(rollouts))
            ]

    assert ([10.0, 21.0, 12.0], [3, 3]) == (rewards(Part(reward=Ranks(), name="a"), texts="abc"), calls)


def correct(value, name="correct"):
    return part(lambda r: value, name)


def test_open_gate_counts():
    assert [1.5] == rewards(correct(1.0), part(lambda r: 0.5, "format", only_if="correct"))


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_closed_gate_leaves_the_part_out(value):
    assert [value] == rewards(correct(value), part(lambda r: 0.5, "format", only_if="correct"))


def test_closed_gate_is_recorded_with_its_reason():
    (rollout,) = score(correct(0.0), part(lambda r: 0.5, "format", only_if="correct")).rollouts
    assert (None, "left out: correct is 0.0 (would be 0.5)") == (rollout.scores[1].value, rollout.scores[1].detail)


def test_gate_that_does_not_apply_is_closed():
    assert [1.0] == rewards(correct(None), part(lambda r: 0.5, "b", only_if="correct"), part(lambda r: 1.0, "c"))


def test_gate_opens_by_the_value_of_the_unparsable_case():
    gate = part(lambda r: Outcome.UNPARSABLE, "g", unparsable=0.1)
    assert [0.1 + 0.5] == rewards(gate, part(lambda r: 0.5, "b", only_if="g"))


def test_gates_in_a_chain_whatever_the_order():
    c = part(lambda r: 1.0, "c", only_if="b")
    b = part(lambda r: 1.0, "b", only_if="a")
    assert [0.0] == rewards(c, b, correct(0.0, "a"))


def test_part_that_failed_behind_a_closed_gate_drops_nothing():
    assert [0.0] == rewards(correct(0.0), part(lambda r: Outcome.FAILED, "format", only_if="correct"))


def test_failed_gate_drops_the_rollout():
    assert [None] == rewards(part(lambda r: Outcome.FAILED, "g"), part(lambda r: 1.0, "b", only_if="g"))


@pytest.mark.parametrize("value", [math.nan, math.inf, "1", [1]])
def test_a_plug_that_gives_no_number_has_failed(value):
    assert [None] == rewards(part(lambda r: value))


def test_a_plug_that_raises_has_failed_with_its_reason():
    verdicts = score(part(lambda r: 1 / 0))
    assert (None, True) == (verdicts.rollouts[0].reward, verdicts.reasons[0].startswith("a: ZeroDivisionError"))


def test_an_error_of_the_set_up_is_raised():
    def refuse(rollout):
        raise DataError("no such column")

    with pytest.raises(DataError):
        score(part(refuse))


@pytest.mark.parametrize("given", [[], ["x"], [Score(name="", value=1.0, outcome=Outcome.SCORED)] * 2])
def test_a_plug_with_a_wrong_list_has_failed(given):
    class Wrong:
        name = "wrong"

        async def score(self, rollouts, task):
            return given

    assert [None] == rewards(Part(reward=Wrong(), name="a"))


def test_a_score_that_says_failed_carries_no_number():
    given = Score(name="", value=1.0, outcome=Outcome.TIMEOUT)
    assert [None] == [s.value for s in score(part(lambda r: given)).rollouts[0].scores]


def test_an_overflowing_sum_is_no_reward():
    assert [None] == rewards(part(lambda r: 1e308, weight=1e10))


def test_parts_run_at_the_same_time():
    meeting = asyncio.Barrier(2)

    class Meets:
        name = "meets"

        async def score(self, rollouts, task):
            await asyncio.wait_for(meeting.wait(), 5)
            return [Score(name="", value=1.0, outcome=Outcome.SCORED)]

    assert [2.0] == rewards(Part(reward=Meets(), name="a"), Part(reward=Meets(), name="b"))


def env_scored(value):
    rollout = make_rollout("x")
    return type(rollout)(
        **{name: getattr(rollout, name) for name in rollout.__dataclass_fields__}
        | {"scores": (Score(name="env", value=value, outcome=Outcome.SCORED),)}
    )


def test_scores_of_the_environment_count():
    verdicts = asyncio.run(Rubric([part(lambda r: 1.0)]).score([env_scored(2.0)], make_task()))
    assert (3.0, ["env", "a"]) == (verdicts.rollouts[0].reward, [s.name for s in verdicts.rollouts[0].scores])


def test_an_environment_alone_can_be_the_reward():
    assert 2.0 == asyncio.run(Rubric([]).score([env_scored(2.0)], make_task())).rollouts[0].reward


def test_a_part_named_like_a_score_of_the_environment_is_refused():
    with pytest.raises(ConfigError, match="rename the parts"):
        asyncio.run(Rubric([part(lambda r: 1.0, "env")]).score([env_scored(2.0)], make_task()))


def test_no_rollouts():
    assert () == score(part(lambda r: 1.0), texts=()).rollouts


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([correct(1.0), correct(1.0)], "'correct'] appear more than once"),
        (
            [correct(1.0), part(lambda r: 1.0, only_if="corect")],
            "only_if = 'corect' is not a part. Did you mean 'correct'",
        ),
        ([part(lambda r: 1.0, only_if="a")], "wait for each other"),
        ([part(lambda r: 1.0, "a", only_if="b"), part(lambda r: 1.0, "b", only_if="a")], "wait for each other"),
        ([part(lambda r: 1.0, weight=0.0)], "all reward parts ['a'] have weight 0"),
        ([part(lambda r: 1.0, weight=math.nan)], "must be finite"),
        ([part(lambda r: 1.0, unparsable=math.inf)], "must be finite"),
        ([part(lambda r: 1.0, attempts=0)], "attempts must be 1 or more"),
    ],
)
def test_contradictions_are_refused_at_once(parts, message):
    with pytest.raises(ConfigError) as caught:
        Rubric(parts)
    assert message in str(caught.value)
