"""The tree of errors and the nearest-name hint."""

import pytest

from posttrain import errors

CODES = {
    "ConfigError": 2,
    "DataError": 2,
    "ModelError": 2,
    "RewardError": 1,
    "CheckError": 3,
    "RecordError": 1,
    "Diverged": 1,
    "Interrupted": 130,
}


@pytest.mark.parametrize(("name", "code"), CODES.items())
def test_exit_codes(name, code):
    assert code == getattr(errors, name).exit_code


@pytest.mark.parametrize("name", CODES)
def test_one_tree(name):
    assert issubclass(getattr(errors, name), errors.PosttrainError)


def test_every_error_is_listed_here():
    tree = {n for n, v in vars(errors).items() if isinstance(v, type) and issubclass(v, errors.PosttrainError)}
    assert {*CODES, "PosttrainError"} == tree


def test_the_nearest_name_is_offered():
    assert " Did you mean 'steps'?" == errors.did_you_mean("stpes", ["steps", "seed"])


def test_all_names_are_listed_where_none_is_near():
    assert " Choose from: seed, steps." == errors.did_you_mean("zzz", ["steps", "seed", "seed"])


def test_nothing_is_offered_without_names():
    assert "" == errors.did_you_mean("steps", [])
