"""The journal: what a step leaves behind, and what a resume takes away again."""

import pytest

from posttrain.errors import RecordError
from posttrain.records.journal import Journal
from posttrain.records.ledger import State
from posttrain.records.run_directory import RunDirectory
from posttrain.tasks.order import TaskOrder
from tests.records.examples import TASK, build_group, build_recipe

ORDER = TaskOrder(3, 0)


class Weights:
    """A learner that is one number."""

    def __init__(self):
        self.value = 0

    def save(self, folder):
        (folder / "value.txt").write_text(str(self.value))

    def load(self, folder):
        self.value = int((folder / "value.txt").read_text())


class Words:
    """A tokenizer that saves one file."""

    def save_pretrained(self, folder):
        (folder / "tokenizer.json").write_text("{}")


@pytest.fixture
def run(tmp_path):
    with RunDirectory.create(tmp_path / "run", build_recipe(), {}) as found:
        yield found


@pytest.fixture
def learner():
    return Weights()


def steps(journal, learner, first, last, *, every=2):
    """Train steps of two prompts each; the weights are the number of the step."""
    for step in range(first, last + 1):
        positions = [2 * step - 2, 2 * step - 1]
        journal.issued([(p, TASK) for p in positions], ORDER, learner.value)
        groups = [build_group(p) for p in positions]
        journal.scored(groups)
        learner.value = step
        journal.record(
            step=step,
            version=step,
            seconds=1.0,
            metrics={"loss": float(step)},
            groups=groups,
            samples=(),
            trained=positions[:1],
            dropped=positions[1:],
        )
        if step % every == 0:
            journal.checkpoint(step, {"step": step, "position": 2 * step}, learner, Words())


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_step_is_in_every_record(run, learner):
    steps(Journal(run), learner, 1, 1)
    assert ([1], ["step-000001.parquet"], [State.TRAINED, State.DROPPED]) == (
        [record.step for record in run.metrics.read()],
        names(run.path / "rollouts"),
        [entry.state for entry in run.ledger.entries()],
    )


@pytest.mark.parametrize(("every", "stored"), [(0, []), (1, [1, 2, 3, 4]), (2, [2, 4]), (3, [3])])
def test_rollouts_are_stored_when_due(run, learner, every, stored):
    steps(Journal(run, rollouts_every=every), learner, 1, 4)
    assert [f"step-{step:06d}.parquet" for step in stored] == names(run.path / "rollouts")


def test_the_ledger_knows_epochs(run, learner):
    steps(Journal(run), learner, 1, 2)
    assert [0, 0, 0, 1] == [entry.epoch for entry in run.ledger.entries()]


def test_groups_that_came_back_empty_are_not_scored(run):
    journal = Journal(run)
    journal.issued([(0, TASK), (1, TASK)], ORDER, 0)
    journal.scored([build_group(0), build_group(1, rewards=())])
    assert [State.SCORED, State.ISSUED] == [entry.state for entry in run.ledger.entries()]


def test_old_checkpoints_go(run, learner):
    steps(Journal(run, keep_checkpoints=2), learner, 1, 8)
    assert ["step-000006", "step-000008"] == names(run.checkpoints)


def test_a_checkpoint_holds_learner_and_tokenizer(run, learner):
    steps(Journal(run), learner, 1, 2)
    folder = run.checkpoints / "step-000002"
    assert (True, True) == ((folder / "value.txt").is_file(), (folder / "model" / "tokenizer.json").is_file())


def test_a_resume_takes_the_newest_checkpoint(run, learner):
    steps(Journal(run), learner, 1, 5)
    fresh = Weights()
    found, messages = Journal(run).resume(fresh)
    assert (4, 4, 8, ()) == (fresh.value, found.step, found.state["position"], messages)


def test_a_resume_cuts_every_record_back(run, learner):
    steps(Journal(run), learner, 1, 5)
    Journal(run).resume(Weights())
    assert ([1, 2, 3, 4], 4, list(range(8))) == (
        [record.step for record in run.metrics.read()],
        len(names(run.path / "rollouts")),
        [entry.position for entry in run.ledger.entries()],
    )


def test_the_steps_after_a_resume_are_recorded_once(run, learner):
    journal = Journal(run)
    steps(journal, learner, 1, 5)
    journal.resume(learner)
    steps(journal, learner, 5, 6)
    assert [1, 2, 3, 4, 5, 6] == [record.step for record in run.metrics.read()]


def test_prompts_in_flight_are_issued_again(run, learner):
    journal = Journal(run)
    steps(journal, learner, 1, 2)
    journal.issued([(4, TASK), (5, TASK)], ORDER, 2)
    journal.resume(learner)
    journal.issued([(4, TASK), (5, TASK)], ORDER, 2)
    assert [State.ISSUED] * 2 == [entry.state for entry in run.ledger.untrained()]


def test_without_a_checkpoint_the_run_begins_again(run, learner):
    journal = Journal(run)
    steps(journal, learner, 1, 1)
    found, messages = journal.resume(learner)
    assert (None, (), [], []) == (found, messages, run.metrics.read(), run.ledger.entries())


def test_a_damaged_checkpoint_is_passed_over_and_named(run, learner):
    steps(Journal(run), learner, 1, 4)
    (run.checkpoints / "step-000004" / "value.txt").write_text("7")
    fresh = Weights()
    found, messages = Journal(run).resume(fresh)
    assert (2, 2, True) == (found.step, fresh.value, "step-000004 is passed over" in messages[0])


def test_a_run_whose_checkpoints_are_all_damaged_is_left_alone(run, learner):
    steps(Journal(run), learner, 1, 2)
    (run.checkpoints / "step-000002" / "value.txt").write_text("7")
    with pytest.raises(RecordError, match=r"no checkpoint of .* is whole"):
        Journal(run).resume(learner)
    assert [1, 2] == [record.step for record in run.metrics.read()]


def test_the_damaged_checkpoint_is_gone_after_the_resume(run, learner):
    steps(Journal(run), learner, 1, 4)
    (run.checkpoints / "step-000004" / "value.txt").write_text("7")
    Journal(run).resume(learner)
    assert ["step-000002"] == names(run.checkpoints)


def test_a_batch_can_be_kept_apart(run):
    path = Journal(run).keep_batch(3, [build_group()], [])
    assert (run.path / "kept", True) == (path.parent, path.is_file())


def test_groups_that_wait_come_back_with_the_checkpoint(run, learner):
    journal = Journal(run)
    steps(journal, learner, 1, 1)
    waiting = build_group(2)
    journal.issued([(2, TASK)], ORDER, 1)
    journal.scored([waiting])
    journal.checkpoint(1, {"step": 1, "position": 3}, learner, Words(), surplus=[waiting])
    found, _ = journal.resume(learner)
    (group,) = journal.surplus(found)
    assert (2, waiting.rewards) == (group.position, group.rewards)
    assert State.SCORED is run.ledger.entries()[2].state


def test_a_checkpoint_without_them_has_none(run, learner):
    journal = Journal(run)
    steps(journal, learner, 1, 2)
    found, _ = journal.resume(learner)
    assert () == journal.surplus(found)
