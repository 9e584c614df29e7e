"""Checks of masks, stop tokens and first rewards: each holds on good input and fails on a planted fault."""

import numpy as np
import pytest

from posttrain.checks.sampled import check_loss_mask, check_spread, check_stop_trained, check_template, check_truncated
from posttrain.models.tiny import build_tokenizer
from posttrain.tasks.chat import Chat
from posttrain.types import Ending, Group, Segment
from tests.models.samples import sample
from tests.records.examples import TASK, build_group, build_rollout, build_segment

STOP = 9
STOPS = frozenset({STOP})


def segment(ids, mask):
    nothing = (-1,) * len(ids)
    return Segment(
        ids=ids, loss_mask=mask, rollout_logprobs=(0.0,) * len(ids), versions=nothing, turns=nothing, prompt_length=1
    )


def stop_status(*segments, endings=None):
    return check_stop_trained(segments, endings or [Ending.STOP] * len(segments), STOPS).status


GOOD = segment((5, 6, STOP), (False, True, True))
UNTRAINED = segment((5, 6, STOP), (False, True, False))
MISSING = segment((5, 6, 7), (False, True, True))
TWO_TURNS = segment((5, STOP, 5, 6, STOP), (False, True, False, True, False))
NOTHING = segment((5, 6), (False, False))


@pytest.mark.parametrize(
    ("row", "expected"),
    [(GOOD, "pass"), (UNTRAINED, "fail"), (MISSING, "fail"), (TWO_TURNS, "fail"), (NOTHING, "fail")],
)
@pytest.mark.parametrize("ending", [Ending.STOP, None])
def test_the_last_trained_token_is_the_stop(row, expected, ending):
    assert expected == stop_status(row, endings=[ending])


def test_one_bad_row_is_enough():
    assert "fail" == stop_status(GOOD, UNTRAINED, GOOD)


@pytest.mark.parametrize("ending", [Ending.LENGTH, Ending.STOP_STRING, Ending.ABORTED])
def test_rows_that_did_not_stop_need_no_stop(ending):
    assert "pass" == stop_status(GOOD, MISSING, endings=[Ending.STOP, ending])


def test_without_a_stopped_row_there_is_nothing_to_prove():
    assert "skip" == stop_status(MISSING, endings=[Ending.LENGTH])


def test_the_verdict_counts():
    assert "1 of 2 rows" == check_stop_trained([GOOD, MISSING], [Ending.STOP, Ending.STOP], STOPS).measured


def whole(trained, length=4, prompt=2):
    mask = np.zeros(length, bool)
    mask[list(trained)] = True
    one = sample(range(prompt), range(length - prompt))
    return one.__class__(**{name: getattr(one, name) for name in one.__slots__} | {"loss_mask": mask})


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([whole([2, 3])], "pass"),
        ([whole([2, 3]), whole([])], "pass"),
        ([whole([])], "fail"),
        ([whole([]), whole([])], "fail"),
        ([], "fail"),
        ([whole([0, 1, 2, 3])], "fail"),
        ([whole([2, 3]), whole([0, 1, 2, 3])], "fail"),
        ([whole([2, 3]), whole([1, 2, 3])], "fail"),
    ],
    ids=["good", "one empty", "empty", "all empty", "none", "full", "one full", "prompt"],
)
def test_loss_mask(rows, expected):
    assert expected == check_loss_mask(rows).status


def test_the_share_is_said():
    assert "50% of tokens train, 0 of 1 rows train their prompt" == check_loss_mask([whole([2, 3])]).measured


def groups_of(*endings):
    return [Group(position=0, task=TASK, rollouts=tuple(build_rollout(i, ending=e) for i, e in enumerate(endings)))]


@pytest.mark.parametrize(
    ("endings", "expected"),
    [
        ([Ending.STOP, Ending.STOP], "pass"),
        ([Ending.STOP, Ending.LENGTH], "pass"),
        ([Ending.LENGTH, Ending.LENGTH, Ending.STOP], "warn"),
    ],
)
def test_truncation_warns_above_a_half(endings, expected):
    assert expected == check_truncated(groups_of(*endings)).status


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [([(1.0, 0.0)], "pass"), ([(1.0, 1.0), (1.0, 0.0)], "pass"), ([(1.0, 1.0), (0.0, 0.0)], "warn")],
)
def test_spread_warns_where_no_group_differs(rewards, expected):
    assert expected == check_spread([build_group(i, rewards=r) for i, r in enumerate(rewards)]).status


def test_spread_without_groups_warns():
    assert "warn" == check_spread([]).status


def test_the_toy_template_keeps_everything():
    assert "tool turn: kept; user turn: kept" == check_template(Chat(build_tokenizer())).measured


def test_a_segment_of_a_real_row_passes():
    rows = [build_segment((5, 6, STOP), prompt_length=1)]
    assert "pass" == check_stop_trained(rows, [Ending.STOP], STOPS).status
