"""Log-probabilities, entropies and collision of tokens: TRL's helpers and fused head against posttrain's head."""

import pytest
import torch

from posttrain.functional.entropy import entropy
from posttrain.functional.preference import log_collision
from posttrain.models.collision import tiled_collision
from posttrain.models.heads import find_head, token_logprobs
from tests.crosscheck import material, theirs

TILES = [1, 4096, 2**20]


def material_head():
    """Hidden states [9, 32], the policy's head and targets [9], float64."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(9, 32, generator=generator, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, material.VOCABULARY, (9,), generator=generator)
    return hidden, find_head(material.policy().double()), targets


def slope(value, leaf):
    return torch.autograd.grad(value.sum(), leaf)[0].flatten().tolist()


@pytest.mark.parametrize("tile_bytes", TILES)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probability_and_its_gradient(temperature, tile_bytes):
    hidden, head, targets = material_head()
    logits = hidden @ head.weight.T
    expected = theirs.utils.selective_log_softmax(logits, targets, temperature=temperature)
    actual, _ = token_logprobs(hidden, head, targets, temperature=temperature, tile_bytes=tile_bytes)
    assert expected.tolist() == pytest.approx(actual.tolist(), abs=1e-9)
    assert slope(expected, hidden) == pytest.approx(slope(actual, hidden), abs=1e-9)


@pytest.mark.parametrize("chunk", [1, 4, 128])
def test_entropy_and_its_gradient(chunk):
    hidden, head, targets = material_head()
    expected = theirs.utils.entropy_from_logits(hidden @ head.weight.T, chunk_size=chunk)
    _, actual = token_logprobs(hidden, head, targets, entropy_gradient=True)
    assert expected.tolist() == pytest.approx(actual.tolist(), abs=1e-9)
    assert slope(expected, hidden) == pytest.approx(slope(actual, hidden), abs=1e-9)


def test_entropy_of_logits():
    hidden, head, _ = material_head()
    logits = hidden @ head.weight.T
    assert theirs.utils.entropy_from_logits(logits).tolist() == pytest.approx(entropy(logits).tolist(), abs=1e-9)


@pytest.mark.parametrize("tile_bytes", TILES)
def test_fused_head_in_float32(tile_bytes):
    """Log-probability, entropy and log of the summed squares, from the same model in one call."""
    model = material.policy()
    ids = torch.tensor([[*material.PROMPTS[0], *material.ANSWERS[0][1]]])
    with torch.no_grad():
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[0, :-1]
        head, targets = find_head(model), ids[0, 1:]
        logprobs, entropies = token_logprobs(hidden, head, targets, tile_bytes=tile_bytes)
        collision = tiled_collision(hidden, head, temperature=1.0, tile_bytes=tile_bytes)
        theirs.utils.add_fused_lm_head(model, outputs=("log_probs", "entropy", "log_sum_sq_probs"))
        fused = model(input_ids=ids, labels=ids, fused_lm_head=True)
    assert fused.log_probs[0].tolist() == pytest.approx(logprobs.tolist(), abs=1e-5)
    assert fused.entropy[0].tolist() == pytest.approx(entropies.tolist(), abs=1e-5)
    assert fused.log_sum_sq_probs[0].tolist() == pytest.approx(collision.tolist(), abs=1e-5)
    assert collision.tolist() == pytest.approx(log_collision(hidden @ head.weight.T).tolist(), abs=1e-5)
