"""What the local learner saves lets training continue bit for bit; what is damaged is refused."""

import json
import math

import pytest

from posttrain.errors import RecordError
from posttrain.types import Loss
from tests.learners.learning import batches, build, build_model, loss, same, train, weights

CASES = {
    "full": {},
    "lora": {"lora": True},
    "lora with dropout": {"lora": True, "dropout": 0.3},
}


@pytest.mark.parametrize("name", CASES)
def test_training_continues_bit_for_bit(name, tmp_path):
    settings = {"schedule": "cosine", "warmup_steps": 2, "weight_decay": 0.1}
    learner = build(build_model(**CASES[name]), **settings)
    train(learner, 3)
    learner.save(tmp_path)
    expected = train(learner, 2)
    other = build(build_model(**CASES[name]), **settings)
    train(other, 1)
    other.load(tmp_path)
    assert 3 == other.version
    assert expected == train(other, 2)
    assert same(weights(learner), weights(other))


def test_loading_into_a_model_of_other_weights(tmp_path):
    learner, other = build(), build(build_model(seed=5))
    train(learner, 1)
    learner.save(tmp_path)
    other.load(tmp_path)
    assert same(weights(learner), weights(other))


def test_loading_clears_a_half_done_gradient(tmp_path):
    learner = build()
    learner.save(tmp_path)
    learner.forward_backward(batches()[0], loss)
    learner.load(tmp_path)
    assert all(p.grad is None for _, p in learner.named_tensors())


def test_before_the_first_step_there_is_no_optimizer_state(tmp_path):
    learner = build()
    learner.save(tmp_path)
    learner.load(tmp_path)
    assert (0, 0) == (learner.version, len(learner._optimizer.state))


def test_a_skipped_step_is_remembered_by_the_schedule(tmp_path):
    learner = build(schedule="linear")
    learner.forward_backward(batches()[0], lambda b, lp, e, v: Loss(total=lp.sum() * math.nan))
    learner.step()
    learner.save(tmp_path)
    other = build(schedule="linear")
    other.load(tmp_path)
    assert (1, 0) == (other.calls, other.version)
    assert train(learner, 1) == train(other, 1)


def test_what_is_written(tmp_path):
    learner = build(schedule="linear", warmup_steps=1)
    train(learner, 2)
    learner.save(tmp_path)
    assert {"model", "optimizer.safetensors", "learner.json"} == {path.name for path in tmp_path.iterdir()}
    expected = {
        "calls": 2,
        "version": 2,
        "total_steps": 10,
        "learning_rate": 1e-2,
        "schedule": "linear",
        "warmup_steps": 1,
    }
    assert expected == json.loads((tmp_path / "learner.json").read_text())


@pytest.mark.parametrize("name", ["learner.json", "optimizer.safetensors"])
def test_a_missing_file_is_a_record_error(name, tmp_path):
    learner = build()
    train(learner, 1)
    learner.save(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(RecordError, match="cannot be read"):
        learner.load(tmp_path)


def test_a_damaged_counter_file_is_a_record_error(tmp_path):
    learner = build()
    learner.save(tmp_path)
    (tmp_path / "learner.json").write_text("{")
    with pytest.raises(RecordError, match="cannot be read"):
        learner.load(tmp_path)


@pytest.mark.parametrize("name", ["optimizer.safetensors", "model/model.safetensors"])
def test_a_cut_off_tensor_file_is_a_record_error(name, tmp_path):
    learner = build()
    train(learner, 1)
    learner.save(tmp_path)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(RecordError, match="cannot be read"):
        learner.load(tmp_path)


def test_a_learner_json_without_counters_is_a_record_error(tmp_path):
    learner = build()
    learner.save(tmp_path)
    (tmp_path / "learner.json").write_text("{}")
    with pytest.raises(RecordError, match="cannot be read"):
        learner.load(tmp_path)
