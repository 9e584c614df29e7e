"""DAPO: the filter, the soft punishment by sampled tokens, and what becomes of cut-off answers."""

import pytest

from posttrain.errors import ConfigError
from posttrain.plugs import build_plug
from posttrain.settings import Plug
from posttrain.types import Ending
from tests.algorithms.family import final, group_of, make, rollout, samples_of, segment
from tests.golden.fixtures import f64


def dapo(limit=10, **options):
    return build_plug("algorithms", Plug(type="dapo", **options), token_limit=limit)


def answer(index, reward, tokens, *, tools=0, cut=False):
    row = segment([1] * tokens + [0] * tools)
    return rollout(index, reward, row, ending=Ending.LENGTH if cut else Ending.STOP)


def first(algorithm, *rollouts):
    return [float(a) for a in algorithm.advantages([group_of(*rollouts)])[0]]


@pytest.mark.parametrize(("rewards", "kept"), [([0.7] * 7, False), ([0.3], False), ([1.0, 1.0], False), ([0, 1], True)])
def test_groups_that_teach_nothing_are_left_out(rewards, kept):
    group = group_of(*(rollout(i, float(r)) for i, r in enumerate(rewards)))
    assert kept is dapo().keep(group)


def test_without_the_filter_nothing_is_refilled():
    assert (9, 0) == (dapo().needs.refill, dapo(filter=False).needs.refill)
    assert dapo(filter=False).keep(group_of(rollout(0, 1.0), rollout(1, 1.0)))


def test_the_filter_looks_before_the_punishment():
    lengths = group_of(answer(0, 1.0, 3), answer(1, 1.0, 10))
    assert not dapo().keep(lengths)


def test_equal_rewards_of_unequal_length_move_nothing():
    assert [0.0, 0.0] == first(dapo(filter=False), answer(0, 1.0, 3), answer(1, 1.0, 10))


def test_the_punishment_grows_in_the_buffer():
    algorithm = dapo(overlong_buffer=4, scale="none")
    plain = f64([1.0, 0.0, 1.0 - 0.25, 1.0 - 1.0])
    expected = (plain - plain.mean()).tolist()
    found = first(algorithm, answer(0, 1.0, 6), answer(1, 0.0, 5), answer(2, 1.0, 7), answer(3, 1.0, 10, cut=True))
    assert expected == pytest.approx(found, abs=1e-12)


def test_tool_tokens_are_not_punished():
    short = first(dapo(overlong_buffer=4), answer(0, 1.0, 5), answer(1, 0.0, 5))
    assert short == first(dapo(overlong_buffer=4), answer(0, 1.0, 5, tools=50), answer(1, 0.0, 5, tools=3))


def test_the_punishment_is_capped():
    beyond = first(dapo(overlong_buffer=4, scale="none"), answer(0, 1.0, 40), answer(1, 1.0, 10), answer(2, 0.5, 1))
    assert beyond[0] == beyond[1]


def test_the_papers_limit_and_buffer_are_those_of_a_run_of_its_length():
    assert (20480, 4096) == (make("dapo").limit, make("dapo").buffer)


def test_no_buffer_means_no_punishment():
    plain = first(dapo(overlong_buffer=0), answer(0, 1.0, 10), answer(1, 0.0, 1))
    assert plain == first(dapo(overlong_buffer=0), answer(0, 1.0, 1), answer(1, 0.0, 1))


def test_a_buffer_beyond_the_limit_is_refused():
    with pytest.raises(ConfigError, match="overlong_buffer = 11"):
        dapo(overlong_buffer=11)


CUT = (answer(0, 1.0, 2), answer(1, 0.0, 2), answer(2, 0.5, 3, cut=True))


def test_cut_off_answers_train_unless_masked():
    assert [2, 2, 3] == [int(s.loss_mask.sum()) for s in samples_of(dapo(), group_of(*CUT))]


@pytest.mark.parametrize("overlong", ["mask", "leave_out"])
def test_masked_answers_train_nowhere(overlong):
    assert [2, 2, 0] == [int(s.loss_mask.sum()) for s in samples_of(dapo(overlong=overlong), group_of(*CUT))]


def test_masked_answers_count_in_the_groups_mean_unless_left_out():
    options = {"overlong_buffer": 0, "scale": "none"}
    members = (answer(0, 1.0, 2), answer(1, 0.0, 2), answer(2, 0.2, 3, cut=True))
    assert [0.6, -0.4, -0.2] == pytest.approx(first(dapo(overlong="mask", **options), *members), abs=1e-12)
    assert [0.5, -0.5, 0.0] == pytest.approx(first(dapo(overlong="leave_out", **options), *members), abs=1e-12)


def test_one_answer_left_moves_nothing():
    members = (answer(0, 1.0, 2), answer(1, 0.0, 3, cut=True))
    assert [0.0, 0.0] == final(dapo(overlong="leave_out"), group_of(*members))
