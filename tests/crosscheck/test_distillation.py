"""TRL's generalised Jensen-Shannon divergence: the function, the trainer's whole loss, and the tiled form."""

import importlib

import pytest
import torch

from posttrain.config import Teacher
from posttrain.functional.distill import jsd
from posttrain.functional.distill_tiles import tiled_divergence
from posttrain.models.teacher import Teachers
from tests.crosscheck import material, ours, theirs
from tests.crosscheck.theirs import assert_same

BETAS = [0.0, 0.1, 0.5, 0.9, 1.0]
SHAPE = (2, 6, 13)


def draw(*shape, seed, scale=2.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)


def gkd_trainer():
    return importlib.import_module("trl.experimental.gkd").GKDTrainer


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("beta", BETAS)
def test_function_and_gradient(beta, temperature):
    student, teacher = draw(*SHAPE, seed=0).requires_grad_(), draw(*SHAPE, seed=1)
    options = {"beta": beta, "temperature": temperature}
    expected = gkd_trainer().generalized_jsd_loss(student, teacher, reduction="sum", **options)
    actual = jsd(student.flatten(0, 1), teacher.flatten(0, 1), **options).sum()
    assert float(expected.detach()) == pytest.approx(float(actual.detach()), abs=1e-9)
    slopes = [torch.autograd.grad(value, student)[0].flatten().tolist() for value in (expected, actual)]
    assert slopes[0] == pytest.approx(slopes[1], abs=1e-9)


def rows():
    """Ids and labels of all answers, padded on the right."""
    pairs = [(p, a) for p, row in zip(material.PROMPTS, material.ANSWERS, strict=True) for a in row]
    pad = torch.nn.utils.rnn.pad_sequence
    ids = pad([torch.tensor([*p, *a]) for p, a in pairs], batch_first=True, padding_value=material.PAD)
    labels = pad([torch.tensor([-100] * len(p) + list(a)) for p, a in pairs], batch_first=True, padding_value=-100)
    lengths = torch.tensor([len(p) + len(a) for p, a in pairs])
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


@pytest.mark.parametrize("beta", BETAS)
def test_trainer_loss_and_gradient(beta):
    """From prompts and answers to the student's gradient; the trainer's method runs with what it reads of itself."""
    kind, model = gkd_trainer(), material.policy()
    parts = {"teacher_model": material.reference(), "beta": beta}
    parts["generalized_jsd_loss"] = staticmethod(kind.generalized_jsd_loss)
    expected = theirs.found(kind.compute_loss(type("Trainer", (), parts)(), model, rows()), model)
    teachers = Teachers([Teacher(path="tiny")], [material.reference()])
    plug = ours.algorithm("gkd", beta=beta, on_policy=1.0)
    assert_same(expected, ours.evaluate(plug, material.online_groups(), material.policy(), teachers=teachers))


@pytest.mark.parametrize("tile", [1, 5, 64])
@pytest.mark.parametrize("beta", BETAS)
def test_tiles_over_hidden_states(beta, tile):
    """Their tiles cut the vocabulary, posttrain's the tokens; their kernel works in float32."""
    trainer = importlib.import_module("trl.trainer.distillation_trainer")
    hidden = draw(2, 6, 8, seed=2, scale=1.0).float().requires_grad_()
    other = draw(2, 6, 5, seed=3, scale=1.0).float()
    heads = draw(13, 8, seed=4, scale=0.7).float(), draw(13, 5, seed=5, scale=0.7).float()
    mask = torch.tensor([[1, 1, 1, 0, 0, 0], [0, 1, 1, 1, 1, 1]])
    expected, _, count = trainer._chunked_divergence_loss(hidden, other, *heads, mask, beta)
    places = mask.bool()
    actual = tiled_divergence(
        lambda own, teacher: jsd(own, teacher, beta=beta),
        hidden[places],
        lambda states: states @ heads[0].T,
        other[places],
        lambda states: states @ heads[1].T,
        tile=tile,
    )
    assert int(count) == len(actual)
    assert float(expected.detach()) == pytest.approx(float(actual.detach().mean()), abs=1e-5)
    slopes = [torch.autograd.grad(value, hidden)[0].flatten().tolist() for value in (expected, actual.mean())]
    assert slopes[0] == pytest.approx(slopes[1], abs=1e-5)
