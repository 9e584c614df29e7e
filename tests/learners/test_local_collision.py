"""A learner that is asked for it hands the loss the policy's own collision probabilities."""

import torch

from posttrain.learners.local import Config, LocalLearner
from posttrain.models.layout import place_padded
from posttrain.types import Loss, Needs
from tests.test_pairing import sample
from tests.tiny_models import build_tiny


def seen_by_the_loss(**needs):
    model = build_tiny(dtype=torch.float64)
    learner = LocalLearner(Config(), model, temperature=0.8, total_steps=1, needs=Needs(**needs))
    rows = [sample(trained=4), sample(rollout=1, trained=2)]
    batches = []

    def loss(batch, logprobs, entropy, values):
        batches.append(batch)
        return Loss(total=logprobs.sum())

    learner.forward_backward(place_padded(rows), loss)
    return model, rows, batches[0]


def test_it_is_that_of_the_models_own_logits():
    model, rows, batch = seen_by_the_loss(collision=True)
    expected = []
    for row in rows:
        with torch.no_grad():
            logits = model(input_ids=torch.as_tensor(row.ids)[None], use_cache=False).logits[0, :-1] / 0.8
        expected.append(logits.softmax(-1).square().sum(-1).log())
    assert torch.allclose(torch.cat(expected), batch.log_collision, atol=1e-6)


def test_nobody_pays_for_what_is_not_asked():
    assert seen_by_the_loss()[2].log_collision is None
