"""Killed with -9 in any station, a run continues with --resume to the very same weights and records."""

import signal

import pytest

from tests.faults.commands import Fault
from tests.faults.same_run import assert_nothing_lost, assert_same_run
from tests.faults.workplace import PROMPTS, STEPS

SYNC, OFFLINE, LAUNCH = "posttrain.loops.sync", "posttrain.loops.offline", "posttrain.launch"
LEDGER, METRICS = "posttrain.records.ledger:Ledger", "posttrain.records.metrics:MetricsLog"
JOURNAL, CHECKPOINTS = "posttrain.records.journal", "posttrain.records.checkpoints"
LEARNER, ROLLOUTS = "posttrain.learners.local:LocalLearner", "posttrain.records.rollout_store:RolloutStore"

WRITING = {
    "before the rollouts are written": Fault(target=f"{ROLLOUTS}.write", call=3),
    "between rollouts and metrics": Fault(target=f"{ROLLOUTS}.write", call=3, when="after"),
    "inside a line of metrics": Fault(target="posttrain.records.json_lines:JsonLines.append", call=3, do="tear"),
    "between metrics and ledger": Fault(target=f"{METRICS}.append", call=3, when="after"),
    "between trained and dropped": Fault(target=f"{LEDGER}.mark", call=8, when="after"),
    "after the record": Fault(target=f"{JOURNAL}:Journal.record", call=3, when="after"),
}
CHECKPOINT = {
    "before a checkpoint": Fault(target=f"{JOURNAL}:write_checkpoint", call=2),
    "before the learner is saved": Fault(target=f"{LEARNER}.save", call=2),
    "after the learner is saved": Fault(target=f"{LEARNER}.save", call=2, when="after"),
    "in the very first checkpoint": Fault(target=f"{LEARNER}.save", call=1, when="after"),
    "before it is synced": Fault(target=f"{CHECKPOINTS}:sync_tree", call=2),
    "before it is renamed": Fault(target=f"{CHECKPOINTS}:sync_tree", call=2, when="after"),
    "after it is renamed": Fault(target=f"{CHECKPOINTS}:sync_folder", call=2),
    "before COMPLETE": Fault(target=f"{CHECKPOINTS}:seal", call=2),
    "after COMPLETE": Fault(target=f"{CHECKPOINTS}:seal", call=2, when="after"),
    "before the old ones are removed": Fault(target=f"{JOURNAL}:prune", call=3),
    "while an old one is removed": Fault(target=f"{CHECKPOINTS}:shutil.rmtree", call=1),
    "in the last checkpoint": Fault(target=f"{CHECKPOINTS}:seal", call=3),
}
STATIONS = {
    "before drawing": Fault(target=f"{SYNC}:draw", call=4),
    "while drawing": Fault(target=f"{LEDGER}.issue", call=3 * PROMPTS + 2, when="after"),
    "before generating": Fault(target=f"{SYNC}:generate", call=4),
    "while generating": Fault(target="posttrain.engines.local:LocalEngine.generate", call=30),
    "before scores are entered": Fault(target=f"{JOURNAL}:Journal.scored", call=3),
    "after scores are entered": Fault(target=f"{JOURNAL}:Journal.scored", call=3, when="after"),
    "before judging": Fault(target=f"{SYNC}:judge", call=4),
    "before building": Fault(target=f"{SYNC}:build_samples", call=4),
    "before learning": Fault(target=f"{SYNC}:learn", call=4),
    "after the backward": Fault(target=f"{LEARNER}.forward_backward", call=3, when="after"),
    "after the optimizer's step": Fault(target=f"{LEARNER}.step", call=3, when="after"),
    "before carrying": Fault(target=f"{SYNC}:carry", call=4),
    "after carrying": Fault(target=f"{SYNC}:carry", call=4, when="after"),
    "before recording": Fault(target=f"{SYNC}:record", call=4),
}
EVALUATION = {
    "before the first evaluation": Fault(target=f"{LAUNCH}:evaluate", call=1),
    "before an evaluation": Fault(target=f"{LAUNCH}:evaluate", call=2),
    "before its result is written": Fault(target=f"{LAUNCH}:append_result", call=2),
    "after its result is written": Fault(target=f"{LAUNCH}:append_result", call=2, when="after"),
    "before the last evaluation": Fault(target=f"{LAUNCH}:evaluate", call=3),
    "after the last evaluation": Fault(target=f"{LAUNCH}:append_result", call=3, when="after"),
}
OFFLINE_STATIONS = {
    "before drawing demonstrations": Fault(target=f"{OFFLINE}:draw", call=4),
    "while drawing demonstrations": Fault(target=f"{LEDGER}.issue", call=3 * PROMPTS + 2, when="after"),
    "before building from them": Fault(target=f"{OFFLINE}:build_samples", call=4),
    "before learning from them": Fault(target=f"{OFFLINE}:learn", call=4),
    "after learning from them": Fault(target=f"{OFFLINE}:learn", call=4, when="after"),
    "before carrying what was learnt": Fault(target=f"{OFFLINE}:carry", call=4),
    "after recording them": Fault(target=f"{JOURNAL}:Journal.record", call=4, when="after"),
    "in an offline checkpoint": Fault(target=f"{CHECKPOINTS}:seal", call=2),
    "in an offline evaluation": Fault(target=f"{LAUNCH}:append_result", call=2),
}


def kill_and_resume(workplace, run, variant, fault):
    """Start, die at the fault, resume, and compare with the run that nothing happened to."""
    died = workplace.train(variant, run, faults=[fault])
    assert -signal.SIGKILL == died.code, died.err or died.out
    resumed = workplace.resume(run)
    assert (0, "") == (resumed.code, resumed.err)
    assert_same_run(workplace.whole(variant), run)
    assert_nothing_lost(run, steps=STEPS, per_step=PROMPTS)


FAST = [
    ("evaluated", STATIONS["while generating"]),
    ("kl", STATIONS["after the optimizer's step"]),
    ("minibatches", WRITING["between metrics and ledger"]),
    ("lora", CHECKPOINT["before COMPLETE"]),
    ("offline", OFFLINE_STATIONS["in an offline evaluation"]),
]


@pytest.mark.parametrize(("variant", "fault"), FAST, ids=[variant for variant, _ in FAST])
def test_a_killed_run_continues_to_the_same_bits(workplace, tmp_path, variant, fault):
    kill_and_resume(workplace, tmp_path / "run", variant, fault)


ALL = STATIONS | WRITING | CHECKPOINT | EVALUATION


@pytest.mark.slow
@pytest.mark.parametrize("moment", ALL)
def test_a_kill_in_any_station_changes_nothing(workplace, tmp_path, moment):
    kill_and_resume(workplace, tmp_path / "run", "evaluated", ALL[moment])


@pytest.mark.slow
@pytest.mark.parametrize("moment", OFFLINE_STATIONS)
def test_a_kill_in_any_offline_station_changes_nothing(workplace, tmp_path, moment):
    kill_and_resume(workplace, tmp_path / "run", "offline", OFFLINE_STATIONS[moment])
