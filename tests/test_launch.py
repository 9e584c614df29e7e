"""Whole runs on a tiny model: launch, stop, resume to the same bits, extend, and what is refused."""

import json

import pytest

from posttrain.assemble import prepare
from posttrain.checks.report import CheckResult
from posttrain.errors import CheckError, Interrupted, RecordError, RewardError
from posttrain.evals.record import read_results
from posttrain.launch import describe, launch, refuse_other_inputs, resume, verify
from posttrain.records.run_directory import RunDirectory
from tests.checks.subjects import HotEngine
from tests.toy_runs import (
    Listener,
    build_assembly,
    build_loaded,
    build_recipe,
    changed,
    rows_in_memory,
    same,
    weights,
)

EVALUATION = {"tasks": {"generator": "addition", "split": "test", "limit": 3}, "samples": 2, "every": 2}


@pytest.fixture
def start(tmp_path):
    """Launch on a fresh tiny model; the run is tmp_path/name."""

    def begin(name="run", kind="grpo", /, *, loaded=None, check=False, tasks=None, progress=None, **sections):
        run = {"directory": str(tmp_path / name), "steps": 4, "checkpoint_every": 2} | sections.pop("run", {})
        recipe = build_recipe(kind, run=run, **sections)
        return launch(recipe, loaded=loaded or build_loaded(), check=check, tasks=tasks, progress=progress)

    return begin


class Interrupting(Listener):
    """Asks the run to stop once a batch is recorded."""

    def __init__(self, at):
        super().__init__()
        self.at = at

    def __getattr__(self, name):
        if name == "step":
            return self._step
        return super().__getattr__(name)

    def _step(self, step, metrics):
        if step == self.at:
            raise Interrupted("enough")


def steps_of(result):
    return [record.step for record in result.steps]


def test_a_run_leaves_its_records(start):
    result = start()
    names = {path.name for path in result.directory.iterdir()}
    assert {"config.toml", "environment.json", "metrics.jsonl", "ledger.sqlite", "rollouts", "checkpoints"} <= names


def test_the_result_holds_one_record_per_batch(start):
    assert [1, 2, 3, 4] == steps_of(start())


def test_the_result_holds_the_trained_model(start):
    loaded = build_loaded()
    before = weights(loaded.model)
    result = start(loaded=loaded)
    assert (True, False) == (loaded.model is result.loaded.model, same(before, weights(result.loaded.model)))


def test_evaluations_before_between_and_after(start):
    result = start(evaluation=EVALUATION)
    on_disk = [found.step for found in read_results(result.directory / "evals.jsonl")]
    assert ([0, 2, 4], [0, 2, 4]) == ([e.step for e in result.evaluations], on_disk)


def test_evaluations_only_at_the_end(start):
    assert [4] == [e.step for e in start(evaluation=EVALUATION | {"every": 0, "before": False}).evaluations]


def test_the_machine_is_recorded(start):
    table = json.loads((start().directory / "environment.json").read_text())
    assert (1, "tiny", {"run": 0}) == (table["threads"]["threads"], table["model"]["name"], table["seeds"])


def test_notes_are_said(start):
    told = Listener()
    start(progress=told)
    notes = [text for (text,) in told.of("note")]
    assert any(text.startswith("threads: 1") for text in notes)


def test_checks_run_first(start):
    result = start(check=True)
    assert (True, []) == (len(result.checks) > 10, [c.name for c in result.checks if c.status == "fail"])


def test_checks_change_nothing(start):
    found = []
    for name, check in (("one", False), ("two", True)):
        loaded = build_loaded()
        start(name, loaded=loaded, check=check)
        found.append(weights(loaded.model))
    assert same(*found)


def test_checks_change_nothing_with_dropout(start):
    found = []
    for name, check in (("one", False), ("two", True)):
        loaded = build_loaded()
        start(name, loaded=loaded, check=check, model={"lora": {"rank": 2, "dropout": 0.5}})
        found.append(weights(loaded.model))
    assert same(*found)


def test_warnings_of_checks_become_findings(start):
    result = start(check=True, rollouts={"max_new_tokens": 2})
    assert ["few rollouts are cut off"] == [finding["name"] for finding in result.findings]


def test_a_failed_check_stops_the_run_before_it_has_a_directory(tmp_path):
    assembly = build_assembly()
    assembly = changed(assembly, engine=HotEngine(assembly.engine))
    with pytest.raises(CheckError, match=r"1 invariants do not hold: engine and learner.*--no-check"):
        verify(assembly, lambda result: None)


def test_verdicts_are_announced():
    told = []
    verify(build_assembly(), told.append)
    assert all(isinstance(result, CheckResult) for result in told)


def test_a_used_directory_is_refused_before_anything_is_loaded(start):
    start()
    told = Listener()
    with pytest.raises(RecordError, match=r"holds a run already\. Continue it with --resume"):
        start(progress=told)
    assert [] == told.told


def test_without_a_directory_runs_are_numbered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = build_recipe(run={"steps": 1})
    found = [launch(recipe, loaded=build_loaded(), check=False).directory.as_posix() for _ in range(2)]
    assert ["runs/tiny", "runs/tiny-2"] == found


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("kind", ["grpo", "sft"])
def test_a_stopped_run_continues_to_the_same_bits(start, tmp_path, kind, at):
    whole, stopped, again = build_loaded(), build_loaded(), build_loaded()
    start("whole", kind, loaded=whole)
    with pytest.raises(Interrupted, match=r"enough\. Everything is kept; continue with --resume"):
        start("cut", kind, loaded=stopped, progress=Interrupting(at))
    result = resume(tmp_path / "cut", loaded=again)
    assert ([1, 2, 3, 4], True) == (steps_of(result), same(weights(whole.model), weights(again.model)))


def test_an_orderly_stop_leaves_a_checkpoint(start, tmp_path):
    with pytest.raises(Interrupted):
        start(progress=Interrupting(1))
    assert ["step-000001"] == [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()]


def test_a_broken_reward_leaves_a_checkpoint(start, tmp_path):
    calls = []

    def later(rollout):
        calls.append(1)
        if len(calls) > 8:
            raise RuntimeError("the judge is out")
        return float(rollout.sampled_count)

    rewards = [{"type": "function", "name": "later", "function": later, "inline": True, "attempts": 1}]
    with pytest.raises(RewardError, match=r"the judge is out.*continue with --resume"):
        start(rewards=rewards)
    assert ["step-000001"] == [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()]


def test_a_finished_run_can_be_extended(start):
    result = start()
    assert [1, 2, 3, 4, 5, 6] == steps_of(resume(result.directory, loaded=build_loaded(), steps=6))


def test_an_extended_run_is_the_longer_run(start):
    whole, part = build_loaded(), build_loaded()
    start("whole", loaded=whole, run={"steps": 6})
    result = start("part")
    resume(result.directory, loaded=part, steps=6)
    assert same(weights(whole.model), weights(part.model))


def test_a_finished_run_says_so(start):
    result, told = start(), Listener()
    resume(result.directory, loaded=build_loaded(), progress=told)
    assert ["the run has its 4 batches already; more of them with --steps"] == [
        text for (text,) in told.of("note") if "already" in text
    ]


def test_a_resume_repeats_no_evaluation(start):
    result = start(evaluation=EVALUATION)
    assert () == resume(result.directory, loaded=build_loaded()).evaluations


def test_a_resume_makes_up_for_a_missing_evaluation(start):
    result = start(evaluation=EVALUATION)
    lines = (result.directory / "evals.jsonl").read_text().splitlines(keepends=True)
    (result.directory / "evals.jsonl").write_text("".join(lines[:-1]))
    assert [4] == [e.step for e in resume(result.directory, loaded=build_loaded()).evaluations]


def test_a_resume_is_noted(start):
    result = start()
    resume(result.directory, loaded=build_loaded())
    assert 1 == len(json.loads((result.directory / "environment.json").read_text())["resumes"])


def test_a_run_of_other_tasks_is_refused(start):
    result = start()
    with RunDirectory.open(result.directory, write=False) as run, pytest.raises(RecordError, match="began with other"):
        refuse_other_inputs(run, changed(build_assembly(), tasks=rows_in_memory()))


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(RecordError, match="does not exist"):
        resume(tmp_path / "nowhere")


def table_of(kind="grpo", /, **sections):
    return describe(prepare(build_recipe(kind, **sections)))


def test_the_batch_table_online():
    found = table_of(run={"steps": 6}, batches={"epochs": 2, "minibatches": 2})
    expected = {
        "tasks": 8,
        "batches": 6,
        "prompts per batch (groups)": 2,
        "rollouts per group": 4,
        "rollouts per batch": 8,
        "sampled tokens per batch, at most": 48,
        "rollouts in all": 48,
        "optimizer steps per batch": 4,
        "optimizer steps in all": 24,
        "passes over the tasks": 1.5,
    }
    assert expected == found


def test_the_batch_table_offline():
    found = table_of("sft", run={"steps": 4})
    assert (3, 4, 1.5) == (
        found["demonstrations per batch"],
        found["optimizer steps in all"],
        found["passes over the tasks"],
    )
