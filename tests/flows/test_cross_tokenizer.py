"""A teacher of another tokenizer trains a tiny model: whole runs, what they report, and what is refused first."""

import numpy as np
import pytest

from posttrain.assemble import assemble, prepare
from posttrain.batches.alignment import Alignment
from posttrain.batches.build import build_samples
from posttrain.config import Plug
from posttrain.errors import ConfigError, ModelError
from posttrain.launch import launch
from posttrain.loops.update import teacher_logprobs
from posttrain.models.tiny import build_toy
from posttrain.tasks.source import task_set
from posttrain.types import Ending, Group, Rollout, Segment
from tests.flows.conftest import online
from tests.foreign_tokens import build_byte_tokenizer
from tests.toy_runs import length_reward

SIZES = {"hidden": 48, "intermediate": 64, "layers": 1, "heads": 2, "kv_heads": 1, "window": 64}
CROSS = {"type": "opd", "cross_tokenizer": True}


@pytest.fixture(scope="session")
def near(tmp_path_factory):
    """Another tiny model with the student's tokenizer."""
    return saved(tmp_path_factory.mktemp("near"), *build_toy(seed=1, **SIZES))


@pytest.fixture(scope="session")
def foreign(tmp_path_factory):
    """Another tiny model that reads bytes."""
    model, tokenizer = build_toy(seed=1, **SIZES)[0], build_byte_tokenizer()
    model.resize_token_embeddings(len(tokenizer))
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.pad_token_id
    return saved(tmp_path_factory.mktemp("foreign"), model, tokenizer)


def saved(folder, model, tokenizer):
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def distil(model, teacher, algorithm, /, **sections):
    """A recipe with a teacher and no reward."""
    usual = {
        "tasks": {"generator": "addition", "options": {"size": 12}},
        "algorithm": Plug(**algorithm),
        "teacher": {"path": teacher},
        "rewards": [],
    }
    return online(model, **(usual | sections))


def answered(assembly, *texts):
    """Samples in which the student answered the first task with these texts and ended its turn."""
    chat, task = assembly.chat, assembly.tasks[0]
    rollouts = []
    for index, text in enumerate(texts):
        prompt, answer = chat.answer_ids(task.messages, text)
        ids = (*prompt, *answer, chat.end_of_turn_id)
        mask = [place >= len(prompt) for place in range(len(ids))]
        segment = Segment(
            ids=ids,
            loss_mask=tuple(mask),
            rollout_logprobs=tuple(-1.0 if on else np.nan for on in mask),
            versions=tuple(0 if on else -1 for on in mask),
            turns=tuple(0 if on else -1 for on in mask),
            prompt_length=len(prompt),
        )
        given = {"index": index, "seed": 0, "messages": task.messages, "text": text, "ending": Ending.STOP}
        rollouts.append(Rollout(task=task, segments=(segment,), **given))
    group = Group(position=0, task=task, rollouts=tuple(rollouts))
    return build_samples([group], [[np.asarray(0.0)] * len(texts)])


@pytest.mark.usefixtures("here")
class TestRuns:
    @pytest.mark.parametrize("more", [{}, {"limit": 5.0}, {"reward_coefficient": 0.5}], ids=str)
    def test_a_teacher_of_other_tokens_trains(self, more, model, foreign):
        rewards = [{"type": "function", "name": "length", "function": length_reward, "inline": True}]
        recipe = distil(model, foreign, CROSS | more, rewards=rewards if "reward_coefficient" in more else [])
        result = launch(recipe, check=False)
        assert [1, 2, 3] == [step.version for step in result.steps]
        for step in result.steps:
            assert 0 < step.metrics["teacher/unaligned"] < 1
            assert np.isfinite(step.metrics["kl_teacher"])

    def test_several_epochs_take_the_advantage_from_where_the_update_began(self, model, foreign):
        recipe = distil(model, foreign, CROSS, batches={"epochs": 2, "minibatches": 2})
        assert launch(recipe, check=False).steps[-1].metrics["ratio/max"] > 1

    def test_the_checks_pass(self, model, foreign):
        checks = launch(distil(model, foreign, CROSS, run={"steps": 1})).checks
        assert "fail" not in {check.status for check in checks}

    def test_a_teacher_of_the_same_tokens_trains_exactly_as_without_the_option(self, model, near):
        usual, crossed = (
            launch(distil(model, near, algorithm, run={"name": name}), check=False)
            for name, algorithm in (("usual", {"type": "opd"}), ("crossed", CROSS))
        )
        for one, other in zip(usual.steps, crossed.steps, strict=True):
            assert [one.metrics[name] for name in ("loss", "kl_teacher", "grad_norm")] == [
                other.metrics[name] for name in ("loss", "kl_teacher", "grad_norm")
            ]
            assert 0.0 == other.metrics["teacher/unaligned"]


class TestScores:
    def test_aligned_scores_of_the_same_tokens_are_the_ordinary_ones_bit_for_bit(self, model, near):
        assembly = assemble(prepare(distil(model, near, CROSS)))
        samples, teachers = answered(assembly, "12", "345 ab", ""), assembly.learner.teachers
        ordinary = teacher_logprobs(samples, assembly.learner, assembly.pack)
        assert {} == teachers.alignments
        teachers.alignments[0] = Alignment(student=assembly.chat, teacher=assembly.chat, window=64)
        aligned = teacher_logprobs(samples, assembly.learner, assembly.pack)
        for sample, one, other in zip(samples, ordinary, aligned, strict=True):
            assert one[sample.loss_mask].tolist() == other[sample.loss_mask].tolist()

    def test_a_span_of_merged_characters_has_one_difference(self, model, foreign):
        assembly = assemble(prepare(distil(model, foreign, CROSS)))
        samples = answered(assembly, "abcd")
        own = assembly.learner.logprobs(assembly.pack(samples)[0])[0]
        taught = teacher_logprobs(samples, assembly.learner, assembly.pack)[0][samples[0].loss_mask]
        asked = assembly.learner.teachers.alignment(assembly.tasks[0]).ask(samples[0])
        theirs = assembly.learner.teachers.logprobs(assembly.pack([asked.row])[0])
        assert 2 == len(theirs)
        assert [theirs[0] - own[:4].sum()] * 4 + [theirs[1] - own[4]] == pytest.approx((taught - own).tolist())

    def test_without_a_shared_text_a_token_has_no_number(self, model, foreign):
        assembly = assemble(prepare(distil(model, foreign, CROSS)))
        (row,) = teacher_logprobs(answered(assembly, "<|pad|>"), assembly.learner, assembly.pack)
        assert np.isnan(row).all()

    def test_the_note_says_what_differs(self, model, foreign):
        notes = assemble(prepare(distil(model, foreign, CROSS))).notes
        assert any("teacher 'teacher' reads other tokens (" in note for note in notes)


class TestRefusals:
    @pytest.mark.parametrize("options", [{"form": "full"}, {"form": "top_k"}, {"baseline": True}], ids=str)
    def test_distributions_over_the_vocabulary(self, options, model, near):
        with pytest.raises(ConfigError, match=r"compare distributions over one vocabulary\. Set form = 'sampled'"):
            prepare(distil(model, near, CROSS | options))

    @pytest.mark.parametrize("kind", ["opd", "kd", "gkd"])
    def test_other_tokens_without_the_option(self, kind, model, foreign):
        with pytest.raises(ModelError, match=r"does not read the student's tokens: .* cross_tokenizer = true"):
            assemble(prepare(distil(model, foreign, {"type": kind})))

    def test_several_turns(self, model, near):
        with pytest.raises(ConfigError, match=r"cross_tokenizer = true .* max_turns = 2: later turns"):
            prepare(distil(model, near, CROSS, rollouts={"max_turns": 2}))

    def test_mixed_teachers(self, model, near):
        teachers = [{"name": name, "path": near, "mix": True} for name in "ab"]
        with pytest.raises(ConfigError, match=r"teachers \['a', 'b'\] are mixed"):
            prepare(distil(model, near, CROSS, teacher=None, teachers=teachers))

    def test_images(self, model, near):
        pictures = task_set([{"question": "what?", "answer": "1", "images": {"pixel_values": [1.0]}}])
        with pytest.raises(ConfigError, match="task '0' has images"):
            prepare(distil(model, near, CROSS), tasks=pictures)
