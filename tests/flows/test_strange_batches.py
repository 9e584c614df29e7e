"""Batches that teach nothing or are not finite: the run goes on, or stops with everything kept."""

import math
import sys

import pytest
import torch
from safetensors.torch import load_file

from posttrain.errors import Diverged
from posttrain.launch import launch, resume
from posttrain.records.checkpoints import newest_complete
from posttrain.records.metrics import MetricsLog
from posttrain.records.rollout_store import RolloutStore
from tests.flows.conftest import online

NAN = '''
from posttrain.algorithms.grpo import GRPO, Config
from posttrain.types import Loss

calls = []


class Poisoned(GRPO):
    """Loses its mind after so many losses."""

    Config = Config

    def loss(self, *arguments):
        calls.append(1)
        found = super().loss(*arguments)
        return Loss(total=found.total * (float("nan") if len(calls) > 2 else 1.0), stats=found.stats)
'''
LETTERS = [{"type": "function", "name": "letters", "function": "letters:share", "inline": True}]


@pytest.fixture
def poisoned(model, here, monkeypatch):
    """A recipe whose gradient is NaN from the third batch on."""
    (here / "poisoned.py").write_text(NAN)
    (here / "letters.py").write_text("def share(rollout):\n    return len(set(rollout.text)) / 4\n")
    for name in ("poisoned", "letters"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return online(
        model,
        algorithm={"type": "poisoned:Poisoned"},
        rewards=LETTERS,
        run={"steps": 9, "max_nonfinite": 3, "checkpoint_every": 1, "directory": str(here / "run")},
    )


def diverge(recipe):
    with pytest.raises(Diverged) as caught:
        launch(recipe, check=False)
    return str(caught.value)


def test_a_gradient_that_stays_nan_stops_the_run_with_its_batch_kept(poisoned, here):
    message = diverge(poisoned)
    assert "3 optimizer steps in a row" in message
    groups = RolloutStore(here / "run" / "kept").read(5)
    assert 2 == len(groups)
    assert 8 == sum(len(group.rollouts) for group in groups)
    assert str(here / "run" / "kept" / "step-000005.parquet") in message


def test_a_nan_gradient_changes_no_weight(poisoned, here):
    diverge(poisoned)
    found = newest_complete(here / "run" / "checkpoints").checkpoint
    assert (4, 2) == (found.step, found.state["nonfinite"])
    newest = load_file(found.path / "model" / "model.safetensors")
    before = load_file(here / "run" / "checkpoints" / "step-000003" / "model" / "model.safetensors")
    assert all(torch.equal(before[name], newest[name]) for name in newest)
    assert all(torch.isfinite(tensor).all() for tensor in newest.values())


def test_skipped_steps_are_on_record(poisoned, here):
    diverge(poisoned)
    rows = MetricsLog(here / "run" / "metrics.jsonl").read()
    assert [0.0, 0.0, 1.0, 1.0] == [record.metrics["steps/nonfinite"] for record in rows]
    assert [1, 2, 2, 2] == [record.version for record in rows]


def test_a_run_that_diverged_continues_where_it_was_sane(poisoned, here):
    diverge(poisoned)
    sys.modules["poisoned"].calls.clear()
    with pytest.raises(Diverged):
        resume(here / "run")
    found = newest_complete(here / "run" / "checkpoints").checkpoint
    assert (8, 2) == (found.step, found.state["nonfinite"])


@pytest.mark.parametrize("answers", [[[]], [[], [40, 41]]], ids=["all", "some"])
def test_completions_without_a_token_are_no_trouble(model, here, answers):
    recipe = online(model, engine={"type": "scripted", "answers": answers}, run={"steps": 2})
    result = launch(recipe, check=False)
    assert [0.0, 0.0] == [record.metrics["length/min"] for record in result.steps]
    assert all(math.isfinite(value) for record in result.steps for value in record.metrics.values())


def test_groups_of_equal_rewards_move_nothing(model, here):
    recipe = online(model, rewards=[{"type": "length", "start": 100, "end": 200}], run={"steps": 2})
    result = launch(recipe, check=False)
    assert [0, 0] == [record.version for record in result.steps]
    assert [2.0, 2.0] == [record.metrics["groups/equal"] for record in result.steps]


def test_a_batch_whose_groups_are_all_dropped_is_recorded_as_dropped(model, here):
    recipe = online(
        model,
        algorithm={"drop_degenerate": True},
        rewards=[{"type": "length", "start": 100, "end": 200}],
        run={"steps": 2, "directory": str(here / "run")},
    )
    result = launch(recipe, check=False)
    assert [2.0, 2.0] == [record.metrics["groups/dropped"] for record in result.steps]
    assert 2 == len(resume(here / "run").steps)


def test_a_failing_engine_stops_the_run_with_its_reason(model, here):
    from_engine = {"type": "scripted", "answers": [[40]], "fail_every": 3}
    with pytest.raises(Exception, match="scripted failure of call 3"):
        launch(online(model, engine=from_engine), check=False)
