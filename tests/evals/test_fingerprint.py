"""The protocol fingerprint notices every change that moves numbers, and says it in words."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import pytest

from posttrain.config import Settings
from posttrain.evals.fingerprint import Fingerprint, differences, fingerprint, verifier_digest
from posttrain.types import Sampling
from tests.evals.builders import PROTOCOL


class Config(Settings):
    """Options of a reward."""

    place: str = "whole"
    """Where."""


class Judge(Settings):
    """Options of a reward that is a function."""

    function: Callable[..., float]
    """Which."""


def strict(rollout):
    return 0.0


def lenient(rollout):
    return 1.0


class Exact:
    """A reward."""

    def __init__(self, config: Config) -> None:
        self.config = config


@dataclass
class Part:
    """A part of a rubric."""

    reward: Exact
    name: str = "exact"
    weight: float = 1.0
    only_if: str | None = None
    unparsable: float = 0.0


CHANGES = {
    "template_hash": "x" * 64,
    "sampling": {"max_new_tokens": 32, "temperature": 1.0, "stop": []},
    "tasks_digest": "x" * 64,
    "task_count": 3,
    "verifier": "x" * 64,
    "samples": 8,
    "version": "9.9",
}


def test_the_fingerprint_takes_every_sampling_parameter():
    made = fingerprint(
        template_hash="t",
        sampling=Sampling(max_new_tokens=8, top_p=0.9),
        tasks_digest="d",
        task_count=1,
        verifier="v",
        samples=2,
    )
    assert made.sampling == {
        "max_new_tokens": 8,
        "temperature": 1.0,
        "top_p": 0.9,
        "top_k": 0,
        "min_p": 0.0,
        "stop": [],
    }


def test_equal_protocols_have_equal_digests_and_no_differences():
    assert (replace(PROTOCOL).digest, []) == (PROTOCOL.digest, differences(PROTOCOL, replace(PROTOCOL)))


def test_every_field_can_change():
    assert set(CHANGES) == set(Fingerprint.__dataclass_fields__)


@pytest.mark.parametrize(("name", "value"), CHANGES.items())
def test_each_change_changes_the_digest_and_is_said_once(name, value):
    changed = replace(PROTOCOL, **{name: value})
    assert (True, 1) == (changed.digest != PROTOCOL.digest, len(differences(PROTOCOL, changed)))


def test_a_sampling_difference_is_named_with_both_values():
    hotter = replace(PROTOCOL, sampling={**PROTOCOL.sampling, "temperature": 0.6})
    assert differences(PROTOCOL, hotter) == ["temperature differs: 1.0 and 0.6"]


def test_a_hash_is_shortened_and_named_in_words():
    other = replace(PROTOCOL, template_hash="0123456789abcdef" * 4)
    assert differences(PROTOCOL, other) == ["chat template differs: tttttttttttt and 0123456789ab"]


def test_a_parameter_that_only_one_protocol_knows_is_said():
    newer = replace(PROTOCOL, sampling={**PROTOCOL.sampling, "penalty": 1.1})
    assert differences(PROTOCOL, newer) == ["penalty is part of only one of the protocols"]


def test_a_fingerprint_survives_json():
    assert Fingerprint.from_json(PROTOCOL.to_json()) == PROTOCOL


def test_the_same_reward_has_the_same_verifier_digest():
    assert verifier_digest([Part(Exact(Config()))]) == verifier_digest([Part(Exact(Config()))])


@pytest.mark.parametrize(
    "part",
    [
        Part(Exact(Config(place="boxed"))),
        Part(Exact(Config()), weight=2.0),
        Part(Exact(Config()), name="other"),
        Part(Exact(Config()), only_if="format"),
        Part(Exact(Config()), unparsable=-1.0),
    ],
)
def test_another_option_weight_or_gate_is_another_verifier(part):
    assert verifier_digest([part]) != verifier_digest([Part(Exact(Config()))])


def test_another_function_is_another_verifier():
    assert verifier_digest([Part(Exact(Judge(function=strict)))]) != verifier_digest(
        [Part(Exact(Judge(function=lenient)))]
    )


@pytest.mark.parametrize("function", [strict, len, partial(strict)])
def test_a_function_has_the_same_digest_in_every_process(function, monkeypatch):
    seen = []
    monkeypatch.setattr("posttrain.evals.fingerprint.hashed", lambda content: seen.append(json.dumps(content)) or "")
    verifier_digest([Part(Exact(Judge(function=function)))])
    assert "0x" not in seen[0]


def test_another_rule_for_what_is_right_is_another_verifier():
    assert verifier_digest([], "exact >= 1") != verifier_digest([], "exact >= 0.5")
