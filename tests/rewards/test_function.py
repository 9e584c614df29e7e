"""Functions of the user, in both styles, in a process and inline: what counts, what fails, and what it says."""

import asyncio
import ctypes
import decimal
import faulthandler
import math
import os
import random
import sys
import time

import numpy as np
import pytest
import torch

from posttrain.errors import ConfigError
from posttrain.rewards.function import Config, Function
from posttrain.types import Outcome, Score
from tests.rewards.rollouts import make_rollout, make_task, score_all, score_one

BOTH = pytest.mark.parametrize("inline", [False, True], ids=["process", "inline"])


def reward(function, **options):
    return Function(Config(function=function, **({"timeout_seconds": 5.0} | options)))


def hang(*_):
    while True:
        pass


def has_answer(rollout):
    return rollout.task.answer in rollout.text


def trl(prompts, completions, answer, **columns):
    return [float(right in text) for right, text in zip(answer, completions, strict=True)]


@BOTH
def test_function_of_a_rollout(inline):
    scores = score_all(reward(has_answer, inline=inline), ["42", "43"])
    assert [1.0, 0.0] == [score.value for score in scores]


@BOTH
def test_lambda(inline):
    assert 2.5 == score_one(reward(lambda rollout: 2.5, inline=inline), "").value


@BOTH
def test_closure(inline):
    table = {"yes": 1.0}
    assert 1.0 == score_one(reward(lambda rollout: table[rollout.text], inline=inline), "yes").value


@BOTH
def test_trl_function(inline):
    scores = score_all(reward(trl, inline=inline), ["42", "43"])
    assert [1.0, 0.0] == [score.value for score in scores]


@BOTH
def test_async_function(inline):
    async def patient(rollout):
        await asyncio.sleep(0.001)
        return 1.0

    assert 1.0 == score_one(reward(patient, inline=inline), "").value


@BOTH
def test_async_trl_function(inline):
    async def patient(completions, **_):
        await asyncio.sleep(0.001)
        return [len(text) for text in completions]

    assert [1.0, 2.0] == [score.value for score in score_all(reward(patient, inline=inline), ["a", "ab"])]


@BOTH
def test_callable_object(inline):
    class Judge:
        def __call__(self, rollout):
            return 1.0

    assert 1.0 == score_one(reward(Judge(), inline=inline), "").value


@BOTH
def test_named_function(inline):
    assert 1.0 == score_one(reward("tests.rewards.test_function:has_answer", inline=inline), "42").value


@BOTH
def test_none_does_not_apply(inline):
    score = score_one(reward(lambda rollout: None, inline=inline), "")
    assert (Outcome.SCORED, None) == (score.outcome, score.value)


@BOTH
def test_none_in_a_list_does_not_apply(inline):
    scores = score_all(reward(lambda completions: [None, 1.0], inline=inline), ["a", "b"])
    assert [(Outcome.SCORED, None), (Outcome.SCORED, 1.0)] == [(score.outcome, score.value) for score in scores]


@BOTH
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, 1.0),
        (False, 0.0),
        (3, 3.0),
        (np.float32(0.5), 0.5),
        (np.bool_(True), 1.0),
        (np.array(0.25), 0.25),
        (torch.tensor(0.75), 0.75),
        (decimal.Decimal("0.5"), 0.5),
    ],
    ids=repr,
)
def test_numbers_of_every_kind(value, expected, inline):
    assert expected == score_one(reward(lambda rollout: value, inline=inline), "").value


@BOTH
@pytest.mark.parametrize(
    "values", [(1.0, 2.0), np.array([1.0, 2.0]), torch.tensor([1.0, 2.0])], ids=["tuple", "np", "pt"]
)
def test_lists_of_every_kind(values, inline):
    assert [1.0, 2.0] == [s.value for s in score_all(reward(lambda completions: values, inline=inline), ["a", "b"])]


@BOTH
@pytest.mark.parametrize(
    ("value", "got"),
    [
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        ("1.0", "str '1.0'"),
        ([1.0], "list"),
        ({}, "dict"),
        (1j, "complex"),
        (object(), "object"),
        (10**400, "int that is no finite float64"),
        (decimal.Decimal("NaN"), "nan"),
        (decimal.Decimal("sNaN"), "Decimal that is no finite float64"),
        (torch.tensor([1.0, 2.0]), "Tensor"),
        (torch.tensor(math.nan), "nan"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_number_has_failed_and_says_what_it_was(value, got, inline):
    def judge(rollout):
        return value

    score = score_one(reward(judge, inline=inline), "")
    assert (Outcome.FAILED, None) == (score.outcome, score.value)
    assert "judge" in score.detail
    assert got in score.detail
    assert "expected a finite number" in score.detail


@BOTH
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0], "returned 1 values for 2 completions"),
        ([1.0] * 3, "returned 3 values for 2 completions"),
        (1.0, "returned float; expected a list of 2"),
        (None, "returned NoneType; expected a list of 2"),
        ("ab", "returned str 'ab'; expected a list of 2"),
        ({"a": 1, "b": 2}, "returned dict; expected a list of 2"),
        ((x for x in (1.0, 2.0)), "returned generator; expected a list of 2"),
        (np.ones((2, 2)), "returned ndarray; expected a list of 2"),
    ],
)
def test_a_wrong_list_fails_the_whole_group(values, message, inline):
    scores = score_all(reward(lambda completions: values, inline=inline), ["a", "b"])
    assert [Outcome.FAILED] * 2 == [score.outcome for score in scores]
    assert message in scores[0].detail


@BOTH
def test_one_bad_value_in_a_list_fails_only_its_rollout(inline):
    scores = score_all(reward(lambda completions: [1.0, math.nan, 3.0], inline=inline), ["a", "b", "c"])
    assert [1.0, None, 3.0] == [score.value for score in scores]


@BOTH
def test_an_exception_fails_and_is_shown(inline):
    score = score_one(reward(lambda rollout: {}["x"], inline=inline), "")
    assert (Outcome.FAILED, True) == (score.outcome, "KeyError: 'x' (test_function.py, line" in score.detail)


@BOTH
def test_an_exception_for_one_rollout_spares_the_others(inline):
    scores = score_all(reward(lambda rollout: 1 / len(rollout.text), inline=inline), ["a", "", "ab"])
    assert [1.0, None, 0.5] == [score.value for score in scores]


@BOTH
def test_a_score_passes_with_its_detail(inline):
    given = Score(name="mine", value=0.5, outcome=Outcome.SCORED, detail="half")
    assert ("function", 0.5, "half") == (lambda s: (s.name, s.value, s.detail))(
        score_one(reward(lambda rollout: given, inline=inline), "")
    )


@BOTH
def test_a_score_can_say_unparsable(inline):
    given = Score(name="", value=None, outcome=Outcome.UNPARSABLE)
    assert Outcome.UNPARSABLE is score_one(reward(lambda rollout: given, inline=inline), "").outcome


@BOTH
def test_a_failed_score_never_carries_a_number(inline):
    given = Score(name="", value=1.0, outcome=Outcome.FAILED)
    assert None is score_one(reward(lambda rollout: given, inline=inline), "").value


@BOTH
def test_a_score_with_nan_has_failed(inline):
    given = Score(name="", value=math.nan, outcome=Outcome.SCORED)
    assert Outcome.FAILED is score_one(reward(lambda rollout: given, inline=inline), "").outcome


def killers():
    def crash(_):
        faulthandler.disable()
        ctypes.string_at(0)

    def exit_at_once(_):
        os._exit(0)

    return {
        "hang": (hang, Outcome.TIMEOUT),
        "segfault": (crash, Outcome.FAILED),
        "os._exit(0)": (exit_at_once, Outcome.FAILED),
        "sys.exit": (lambda _: sys.exit(), Outcome.FAILED),
        "recursion": (lambda _: (f := lambda x: f(x))(0), Outcome.FAILED),
        "interrupt": (lambda _: (_ for _ in ()).throw(KeyboardInterrupt), Outcome.FAILED),
        "sleep": (lambda _: time.sleep(1000), Outcome.TIMEOUT),
    }


@pytest.mark.parametrize("fault", killers())
def test_a_deadly_rollout_is_typed_and_spares_the_others_and_later_calls(fault):
    kill, outcome = killers()[fault]
    judge = reward(lambda rollout: kill(0) if rollout.text == "bad" else 1.0, timeout_seconds=0.5)
    first = score_all(judge, ["ok", "bad", "ok", "ok"])
    second = score_all(judge, ["ok"] * 4)
    assert [Outcome.SCORED, outcome, Outcome.SCORED, Outcome.SCORED] == [score.outcome for score in first]
    assert [1.0] * 4 == [score.value for score in second]


def test_a_hang_of_a_trl_function_times_the_group_out_and_not_the_next():
    judge = reward(lambda completions: hang() if "bad" in completions else [1.0, 1.0], timeout_seconds=0.5)
    first, second = score_all(judge, ["ok", "bad"]), score_all(judge, ["ok", "ok"])
    assert [Outcome.TIMEOUT] * 2 == [score.outcome for score in first]
    assert [1.0, 1.0] == [score.value for score in second]


def test_a_hundred_faults_become_no_score_and_spoil_no_good_call():
    names = ["hang", "segfault", "os._exit(0)", "sys.exit"]

    def judge(rollout):
        return killers()[rollout.text][0](0) if rollout.text in names else float(rollout.text)

    texts = [random.Random(i).choice(names[1:]) if i % 2 else str(i) for i in range(100)]
    texts[51] = "hang"
    scores = score_all(reward(judge, timeout_seconds=0.5), texts)
    assert [None if i % 2 else float(i) for i in range(100)] == [score.value for score in scores]


@BOTH
def test_trl_gets_columns_repeated_per_rollout(inline):
    def judge(prompts, completions, completion_ids, level, answer):
        ok = prompts == ["Question?"] * 2 and level == [3, 3] and answer == ["42", "42"]
        return [float(ok and ids == [10, 11, 12]) for ids in completion_ids]

    assert [1.0, 1.0] == [s.value for s in score_all(reward(judge, inline=inline), ["a", "b"], level=3)]


@BOTH
def test_trl_messages_on_demand(inline):
    def judge(prompts, completions):
        return [
            float(p[0]["role"] == "user" and c[0]["content"] == "a") for p, c in zip(prompts, completions, strict=True)
        ]

    assert 1.0 == score_one(reward(judge, chat=True, inline=inline), "a").value


@BOTH
def test_trl_column_that_the_task_lacks_is_named(inline):
    score = score_one(reward(lambda completions, anwser: [1.0], inline=inline), "")
    assert Outcome.FAILED is score.outcome
    assert "demands 'anwser', which the task does not have. Did you mean 'answer'?" in score.detail


@BOTH
def test_trl_parameter_with_a_default_is_optional(inline):
    assert 7.0 == score_one(reward(lambda completions, extra=7: [extra], inline=inline), "").value


def test_random_numbers_of_a_process_start_from_the_rollout():
    judge = reward(lambda rollout: random.random() + np.random.random(), workers=2)
    first, second = score_all(judge, ["a"] * 6), score_all(judge, ["a"] * 6)
    assert [s.value for s in first] == [s.value for s in second]
    assert 6 == len({s.value for s in first})


def test_no_rollouts_give_no_scores():
    assert [] == score_all(reward(has_answer), [])


def test_task_with_a_column_that_cannot_be_sent_fails():
    task = make_task(lock=lambda: 0)
    scores = asyncio.run(reward(has_answer).score([make_rollout("", task)], task))
    assert (Outcome.FAILED, True) == (scores[0].outcome, "cannot be sent to a process" in scores[0].detail)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("has_answer", "is not module:function"),
        ("no_such_module_here:f", "cannot be imported"),
        ("tests.rewards.test_function:has_anwser", "Did you mean 'has_answer'"),
        ("tests.rewards.test_function:BOTH_", "has no function 'BOTH_'"),
    ],
)
def test_names_that_lead_nowhere(name, message):
    with pytest.raises(ConfigError, match=message):
        reward(name)


@pytest.mark.parametrize("function", [lambda: 1.0, lambda a, b: 1.0, lambda *, rollout: 1.0, lambda **k: 1.0])
def test_signatures_of_neither_style_are_refused(function):
    with pytest.raises(ConfigError, match="expected either one parameter, the rollout, or TRL's style"):
        reward(function)


def test_a_module_in_the_current_folder_is_found(tmp_path, monkeypatch):
    (tmp_path / "own_reward_for_test.py").write_text("def f(rollout):\n    return 9\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert 9.0 == score_one(reward("own_reward_for_test:f"), "").value
