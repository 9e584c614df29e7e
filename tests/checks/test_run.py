"""All checks on a tiny real model: healthy ones pass, and each planted fault makes its own check fail."""

import asyncio
import dataclasses

import pytest
import torch

from posttrain.batches.pack import pack as posttrain_pack
from posttrain.checks.run import run_checks
from posttrain.errors import RewardError
from posttrain.types import Ending, Outcome
from tests.checks.subjects import (
    DriftingLearner,
    HiddenPush,
    HotEngine,
    LeakyLearner,
    MicrobatchMean,
    NoBaseline,
    OrderedLearner,
    OtherReference,
    ScaledEngine,
    ShiftedEngine,
    Wrapped,
    WrongLayout,
    broken,
    build_subject,
    faulty,
)
from tests.rollouts.fakes import FakeReward
from tests.toy_runs import build_loaded, same, weights


def run(subject, announce=lambda result: None):
    return asyncio.run(run_checks(subject, announce))


def failed(subject):
    return [result.name for result in run(subject) if result.status == "fail"]


@pytest.fixture(scope="module")
def healthy():
    return build_subject()


@pytest.fixture(scope="module")
def verdict(healthy):
    return run(healthy)


ONLINE = [
    "template keeps the prefix",
    "stop token is trained",
    "loss mask is neither empty nor full",
    "first-step ratio is 1",
    "reference KL is 0",
    "engine and learner log-probabilities agree",
    "microbatch split changes nothing",
    "row order changes nothing",
    "packing changes nothing",
    "prefix sharing changes nothing",
    "padding side changes nothing",
    "NaN in masked places does no harm",
    "equal rewards move nothing",
    "few rollouts are cut off",
    "rewards differ inside groups",
]


def test_every_invariant_is_tried_in_order(verdict):
    assert ONLINE == [result.name for result in verdict]


def test_a_healthy_model_fails_nothing(verdict):
    assert [] == [(r.name, r.measured) for r in verdict if r.status == "fail"]


def test_numbers_are_proved_and_not_skipped(verdict):
    exact = [result for result in verdict if result.name in ONLINE[3:13]]
    assert ["pass"] * 10 == [result.status for result in exact]


def test_offline_checks_are_those_without_an_engine():
    offline = [n for n in ONLINE if n not in (ONLINE[4], ONLINE[5], ONLINE[12], ONLINE[13], ONLINE[14])]
    results = run(build_subject("sft"))
    assert ([*offline], []) == ([r.name for r in results], [r.name for r in results if r.status == "fail"])


@pytest.mark.parametrize(
    "sections",
    [
        {"rollouts": {"temperature": 0.7}},
        {"algorithm": {"kl_coefficient": 0.0}},
        {"algorithm": {"kl_coefficient": 0.0, "entropy_coefficient": 0.01}},
        {"algorithm": {"reduction": "token-mean", "scale": "none"}},
        {"algorithm": {"centre": "leave_one_out", "drop_degenerate": True}},
        {"model": {"lora": {"rank": 2, "dropout": 0.5}}},
        {"learner": {"gradient_checkpointing": True}},
    ],
    ids=str,
)
def test_healthy_recipes_fail_nothing(sections):
    assert [] == failed(build_subject(**sections))


def test_a_model_in_float64_is_held_to_a_smaller_bound():
    results = run(build_subject(loaded=build_loaded(dtype=torch.float64)))
    bounds = {r.expected for r in results if r.name in ONLINE[3:6]}
    assert ({"at most 1e-06"}, []) == (bounds, [(r.name, r.measured) for r in results if r.status == "fail"])


@pytest.mark.parametrize("engine", [HotEngine, ScaledEngine, ShiftedEngine])
def test_an_engine_that_samples_or_reports_otherwise(healthy, engine):
    assert ["engine and learner log-probabilities agree"] == failed(broken(healthy, engine=engine(healthy.engine)))


def test_a_learner_at_another_temperature():
    subject = build_subject(rollouts={"temperature": 0.7})
    subject = broken(subject, sampling=dataclasses.replace(subject.sampling, temperature=1.0))
    assert ["engine and learner log-probabilities agree"] == failed(subject)


def test_a_learner_that_scores_at_another_temperature_than_it_says():
    subject = build_subject(rollouts={"temperature": 0.7})
    learner = Wrapped(subject.learner)
    learner.temperature = 1.0
    assert ["padding side changes nothing"] == failed(broken(subject, learner=learner))


@pytest.mark.parametrize(
    ("learner", "name"),
    [
        (OtherReference, "reference KL is 0"),
        (LeakyLearner, "NaN in masked places does no harm"),
        (lambda inner: WrongLayout(inner, "packed"), "packing changes nothing"),
        (lambda inner: WrongLayout(inner, "shared"), "prefix sharing changes nothing"),
    ],
    ids=["reference", "leak", "packing", "sharing"],
)
def test_a_learner_with_one_fault_fails_one_check(healthy, learner, name):
    subject = broken(healthy, learner=learner(healthy.learner))
    subject = broken(subject, pack=padded) if "changes" in name else subject
    assert [name] == failed(subject)


@pytest.mark.parametrize("array", ["advantages", "rollout_logprobs"])
def test_nan_leaks_from_every_array(healthy, array):
    learner = LeakyLearner(healthy.learner, array)
    assert "NaN in masked places does no harm" in failed(broken(healthy, learner=learner))


def padded(samples):
    """Padded rows whatever is cheaper, so that a fault of another layout shows only in its own check."""
    return posttrain_pack(samples, token_budget=10**6, layout="padded")


def test_a_forward_without_gradient_that_differs(healthy):
    found = failed(broken(healthy, learner=DriftingLearner(healthy.learner)))
    assert {"first-step ratio is 1", "engine and learner log-probabilities agree"} <= set(found)


def test_row_order(healthy):
    assert "row order changes nothing" in failed(broken(healthy, learner=OrderedLearner(healthy.learner)))


def test_a_loss_that_normalises_per_microbatch(healthy):
    assert ["microbatch split changes nothing"] == failed(broken(healthy, algorithm=faulty(MicrobatchMean)))


@pytest.mark.parametrize("algorithm", [NoBaseline, HiddenPush])
def test_equal_rewards_that_push(healthy, algorithm):
    assert "equal rewards move nothing" in failed(broken(healthy, algorithm=faulty(algorithm)))


def test_a_push_through_the_kl_part_is_no_fault(healthy):
    assert "equal rewards move nothing" not in failed(healthy)


def test_checks_move_no_weight(healthy):
    before = weights(healthy.learner.model)
    run(healthy)
    assert same(before, weights(healthy.learner.model))


def test_checks_leave_no_gradient(healthy):
    run(healthy)
    assert [] == [name for name, p in healthy.learner.named_tensors() if p.grad is not None]


def test_checks_leave_the_attention_as_it_was(healthy):
    before = healthy.learner.model.config._attn_implementation
    run(healthy)
    assert before == healthy.learner.model.config._attn_implementation


def test_results_are_announced_as_they_come(healthy):
    told = []
    assert run(healthy, told.append) == tuple(told)


def test_a_cut_distribution_is_not_compared(healthy):
    subject = broken(healthy, sampling=dataclasses.replace(healthy.sampling, top_p=0.9))
    assert ["skip"] == [r.status for r in run(subject) if r.name.startswith("engine and learner")]


def test_a_layout_that_is_not_used_is_skipped(healthy):
    results = run(broken(healthy, layouts=frozenset({"padded"}), pack=padded))
    assert ["packing changes nothing", "prefix sharing changes nothing"] == [
        r.name for r in results if r.status == "skip" and r.name != "stop token is trained"
    ]


def test_rewards_that_all_fail_stop_the_check_with_the_reason(healthy):
    parts = tuple(dataclasses.replace(p, reward=FakeReward(lambda r: Outcome.FAILED)) for p in healthy.rubric.parts)
    with pytest.raises(RewardError, match=r"8 of 8 rollouts have no reward.*told so"):
        run(broken(healthy, rubric=type(healthy.rubric)(parts)))


class MuteEngine(Wrapped):
    """Samples nothing."""

    async def generate(self, prompt_ids, sampling, *, seed):
        found = await self.inner.generate(prompt_ids, sampling, seed=seed)
        return dataclasses.replace(found, ids=(), rollout_logprobs=(), versions=(), ending=Ending.LENGTH)


def test_a_sample_without_a_token_to_train_fails(healthy):
    assert ["loss mask is neither empty nor full"] == failed(broken(healthy, engine=MuteEngine(healthy.engine)))


def test_the_sample_uses_up_nothing_of_the_run(healthy):
    version = healthy.learner.version
    run(healthy)
    assert (version, 0) == (healthy.learner.version, healthy.learner.calls)
