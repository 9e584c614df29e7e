"""Every way to imitate trains a tiny model for three steps: whole runs with their records, notes and checks."""

import pytest

from posttrain.assemble import assemble, prepare
from posttrain.config import Plug
from posttrain.errors import CheckError, ConfigError, DataError, ModelError, RecordError
from posttrain.launch import launch, resume
from posttrain.models.tiny import build_toy
from posttrain.records.rollout_store import RolloutStore
from tests.flows.conftest import online
from tests.toy_runs import length_reward

ADDITION = {"generator": "addition", "options": {"size": 12}}
LENGTH = [{"type": "function", "name": "length", "function": length_reward, "inline": True}]


@pytest.fixture(scope="session")
def teacher(tmp_path_factory):
    """A folder with another tiny model and the same tokenizer."""
    return saved(tmp_path_factory.mktemp("teacher"), seed=1)


def saved(folder, change=lambda tokenizer: None, *, seed=1, **sizes):
    """Build a tiny toy, change its tokenizer, save both."""
    model, tokenizer = build_toy(
        seed=seed, **({"hidden": 48, "intermediate": 64, "layers": 1, "heads": 2, "kv_heads": 1, "window": 64} | sizes)
    )
    change(tokenizer)
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def foreign(tokenizer):
    """Give the tokenizer a template that says a word more."""
    tokenizer.chat_template = "hi " + tokenizer.chat_template


def distil(model, teacher, algorithm, /, **sections):
    """A recipe with a teacher and no reward."""
    usual = {
        "tasks": ADDITION,
        "algorithm": Plug(**algorithm),
        "teacher": {"path": teacher},
        "rewards": [],
        "batches": {"demonstrations_per_step": 4},
    }
    return online(model, **(usual | sections))


def start(recipe, **options):
    return launch(recipe, check=False, **options)


@pytest.mark.usefixtures("here")
class TestRuns:
    @pytest.mark.parametrize(
        "algorithm",
        [
            {"type": "kd", "temperature": 2.0, "likelihood_coefficient": 0.1},
            {"type": "gkd"},
            {"type": "opd"},
            {"type": "opd", "baseline": True, "limit": 5.0},
            {"type": "opd", "form": "full"},
            {"type": "opd", "form": "top_k", "top_k": 8},
        ],
        ids=str,
    )
    def test_a_teacher_alone_trains(self, algorithm, model, teacher):
        result = start(distil(model, teacher, algorithm))
        assert [1, 2, 3] == [step.version for step in result.steps]
        assert all(step.metrics["kl_teacher"] > 0 for step in result.steps)
        assert not any(name.startswith(("reward", "pass_rate")) for name in result.steps[-1].metrics)

    def test_teacher_and_reward_train_together(self, model, teacher):
        algorithm = {"type": "opd", "reward_coefficient": 0.5}
        metrics = start(distil(model, teacher, algorithm, rewards=LENGTH)).steps[-1].metrics
        assert metrics["loss"] == pytest.approx(metrics["loss/policy"] + metrics["loss/distillation"])
        assert "reward/mean" in metrics

    def test_kd_draws_the_student_to_the_teacher(self, model, teacher):
        recipe = distil(model, teacher, {"type": "kd"}, run={"steps": 12})
        gaps = [step.metrics["kl_teacher"] for step in start(recipe).steps]
        assert gaps[-1] < 0.7 * gaps[0]

    def test_several_epochs_take_the_advantage_from_where_the_update_began(self, model, teacher):
        recipe = distil(model, teacher, {"type": "opd"}, batches={"epochs": 2, "minibatches": 2})
        metrics = start(recipe).steps[-1].metrics
        assert metrics["ratio/max"] > 1

    def test_a_share_of_the_batches_is_sampled(self, model, teacher):
        result = start(distil(model, teacher, {"type": "gkd"}, run={"steps": 8}))
        sampled = ["tokens/sampled" in step.metrics for step in result.steps]
        assert {True, False} == set(sampled)

    @pytest.mark.parametrize(("share", "sampled"), [(0.0, False), (1.0, True)])
    def test_all_batches_or_none(self, share, sampled, model, teacher):
        tasks = ADDITION
        result = start(distil(model, teacher, {"type": "gkd", "on_policy": share}, tasks=tasks))
        assert [sampled] * 3 == ["tokens/sampled" in step.metrics for step in result.steps]

    def test_a_resumed_run_tosses_the_same_coins(self, model, teacher):
        whole = start(distil(model, teacher, {"type": "gkd"}, run={"name": "whole", "steps": 4}))
        part = start(distil(model, teacher, {"type": "gkd"}, run={"name": "part", "steps": 2}))
        again = resume(part.directory, steps=4)
        assert [step.metrics["loss"] for step in whole.steps] == [step.metrics["loss"] for step in again.steps]

    def test_a_run_does_not_go_on_with_another_teacher(self, model, tmp_path):
        path = saved(tmp_path / "teacher", seed=1)
        begun = start(distil(model, path, {"type": "kd"}, run={"steps": 1}))
        saved(tmp_path / "teacher", seed=2)
        with pytest.raises(RecordError, match="began with another teacher"):
            resume(begun.directory, steps=2)

    def test_unrewarded_rollouts_are_recorded_without_a_reward(self, model, teacher):
        result = start(distil(model, teacher, {"type": "opd"}))
        groups = RolloutStore(result.directory / "rollouts").read(3)
        assert {None} == {rollout.reward for group in groups for rollout in group.rollouts}

    def test_an_evaluation_may_have_a_reward_that_training_does_not_need(self, model, teacher):
        evaluation = {"tasks": ADDITION, "samples": 1, "before": False}
        result = start(distil(model, teacher, {"type": "opd"}, rewards=[{"type": "exact"}], evaluation=evaluation))
        assert 1 == len(result.evaluations)

    def test_rejection_fine_tuning_imitates_what_reached_the_threshold(self, model):
        algorithm = {"type": "rft", "threshold": 3.0, "cap": 2}
        result = start(online(model, tasks=ADDITION, algorithm=Plug(**algorithm), rewards=LENGTH))
        imitated = [step.metrics["samples/imitated"] for step in result.steps]
        assert all(0 < count <= 4 for count in imitated)

    def test_rejection_fine_tuning_waits_where_nothing_is_right(self, model):
        algorithm = {"type": "rft", "threshold": 1e6}
        result = start(online(model, tasks=ADDITION, algorithm=Plug(**algorithm), rewards=LENGTH))
        assert [0, 0, 0] == [step.version for step in result.steps]


@pytest.mark.usefixtures("here")
class TestChecks:
    @pytest.mark.parametrize(
        "algorithm", [{"type": "kd"}, {"type": "opd"}, {"type": "opd", "form": "full"}, {"type": "rft"}]
    )
    def test_every_invariant_holds(self, algorithm, model, teacher):
        needed = {} if algorithm["type"] == "rft" else {"teacher": {"path": teacher}}
        rewards = LENGTH if algorithm["type"] == "rft" else []
        recipe = online(model, tasks=ADDITION, algorithm=Plug(**algorithm), run={"steps": 1}, rewards=rewards, **needed)
        try:
            checks = launch(recipe).checks
        except CheckError as error:
            pytest.fail(str(error))
        assert "fail" not in {check.status for check in checks}

    def test_a_teacher_that_is_the_student_is_near(self, model):
        recipe = distil(model, model, {"type": "opd"}, run={"steps": 1})
        (check,) = [c for c in launch(recipe).checks if c.name == "the teacher is near the student"]
        assert "pass" == check.status
        assert 0.0 == pytest.approx(float(check.measured.split()[0]), abs=1e-3)

    def test_a_far_teacher_is_a_warning_and_a_finding(self, model, tmp_path):
        far = saved(tmp_path / "far", seed=5, hidden=256, layers=3)
        result = launch(distil(model, far, {"type": "opd"}, run={"steps": 1}))
        assert "the teacher is near the student" in {finding["name"] for finding in result.findings}


class TestRefusals:
    def test_a_missing_teacher(self, model):
        with pytest.raises(ConfigError, match=r"'opd' imitates a teacher and the recipe names none: add \[teacher\]"):
            prepare(online(model, algorithm=Plug(type="opd")))

    def test_a_teacher_that_nobody_asks(self, model, teacher):
        with pytest.raises(ConfigError, match="'grpo' asks no teacher"):
            prepare(online(model, teacher={"path": teacher}))

    def test_one_and_several(self, model, teacher):
        with pytest.raises(ConfigError, match="not both"):
            prepare(distil(model, teacher, {"type": "opd"}, teachers=[{"path": teacher}]))

    def test_a_teacher_that_is_not_there(self, model, tmp_path):
        with pytest.raises(ModelError, match="does not exist"):
            prepare(distil(model, str(tmp_path / "nowhere"), {"type": "opd"}))

    def test_adapters_on_a_teacher(self, model, teacher):
        with pytest.raises(ConfigError, match="is frozen and trains no adapters"):
            prepare(distil(model, teacher, {"type": "opd"}, teacher={"path": teacher, "lora": {}}))

    def test_equal_names(self, model, teacher):
        teachers = [{"path": teacher, "values": ["a"]}, {"path": teacher, "values": ["b"]}]
        with pytest.raises(ConfigError, match="teachers need different names"):
            prepare(several(model, teachers))

    def test_tasks_of_nobody(self, model, teacher):
        teachers = [{"name": "a", "path": teacher, "column": "generator", "values": ["sort"]}]
        with pytest.raises(DataError, match="no teacher is responsible for task '0'"):
            prepare(several(model, teachers))

    def test_tasks_of_two(self, model, teacher):
        teachers = [{"name": "a", "path": teacher}, {"name": "b", "path": teacher}]
        with pytest.raises(ConfigError, match="mix = true"):
            prepare(several(model, teachers))

    def test_demonstrations_for_gkd(self, model, teacher):
        assert "assistant" == prepare(distil(model, teacher, {"type": "gkd"})).tasks[0].messages[-1]["role"]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda tokenizer: tokenizer.add_tokens(["ab"]), "1 vocabulary entries differ, for example 'ab'"),
            (foreign, "chat templates or their special tokens differ; other ids for the conversation"),
        ],
    )
    def test_other_tokens(self, change, message, model, tmp_path):
        other = saved(tmp_path / "other", change)
        with pytest.raises(ModelError, match=message):
            assemble(prepare(distil(model, other, {"type": "opd"})))

    def test_a_template_can_be_given_to_the_teacher(self, model, tmp_path):
        other = saved(tmp_path / "other", foreign)
        own = tmp_path / "own.jinja"
        own.write_text(build_toy(seed=0, hidden=8, heads=1, kv_heads=1, layers=1, intermediate=8)[1].chat_template)
        recipe = distil(model, other, {"type": "opd"}, teacher={"path": other, "chat_template": str(own)})
        assert assemble(prepare(recipe)).learner.teachers is not None

    def test_a_smaller_window_of_the_teachers_counts(self, model, tmp_path):
        small = saved(tmp_path / "small", window=40)
        assembly = assemble(prepare(distil(model, small, {"type": "opd"})))
        assert 40 == assembly.engine.window
        assert any("window: 40 tokens, a teacher's, instead of the student's 64" in note for note in assembly.notes)


@pytest.mark.usefixtures("here")
class TestSeveralTeachers:
    @pytest.mark.parametrize("algorithm", [{"type": "opd"}, {"type": "opd", "form": "full"}], ids=str)
    def test_tasks_are_routed(self, algorithm, model, teacher):
        routes = [
            {"name": "one", "path": teacher, "column": "generator", "values": ["maximum", "sort"]},
            {"name": "two", "path": model, "column": "generator", "values": ["reverse", "next_number"]},
        ]
        tasks = {"generator": "mix", "options": {"names": ["maximum", "reverse", "sort", "next_number"], "size": 12}}
        result = start(several(model, routes, tasks=tasks, algorithm=Plug(**algorithm)))
        assert [1, 2, 3] == [step.version for step in result.steps]

    def test_teachers_are_mixed_if_asked(self, model, teacher):
        mixed = [{"name": "one", "path": teacher, "mix": True}, {"name": "two", "path": model, "mix": True}]
        assert 3 == len(start(several(model, mixed)).steps)


def several(model, teachers, **sections):
    """A recipe with a list of teachers."""
    usual = {"tasks": ADDITION, "algorithm": Plug(type="opd"), "teachers": teachers, "rewards": []}
    return online(model, **(usual | sections))
