"""Samples, and the plain numbers of a model on them, one sample at a time with transformers' own forward."""

from collections.abc import Sequence

import numpy as np
import torch

from posttrain.types import Microbatch, Sample


def sample(
    prompt: Sequence[int],
    completion: Sequence[int],
    *,
    group: int = 0,
    rollout: int = 0,
    mask: Sequence[bool] | None = None,
    **fields: object,
) -> Sample:
    """A sample that trains its completion, or the masked part of it."""
    ids = np.array([*prompt, *completion], np.int64)
    trained = np.zeros(len(ids), bool)
    trained[len(prompt) :] = True if mask is None else np.array(mask, bool)
    values = {
        "advantages": np.arange(len(ids), dtype=float),
        "rollout_logprobs": np.where(trained, -1.5, np.nan),
        "versions": np.where(trained, 3, -1),
        "turns": np.where(trained, 0, -1),
        "token_weight": {"policy": np.linspace(0.5, 1.5, len(ids))},
    } | fields
    return Sample(ids=ids, loss_mask=trained, prompt_length=len(prompt), group=group, rollout=rollout, **values)


def ragged_groups(vocabulary: int = 61) -> list[Sample]:
    """Four groups: ragged and one-token branches, masks with gaps, a group of one, a sample that trains nothing."""
    random = np.random.default_rng(0)

    def tokens(count: int) -> np.ndarray:
        return random.integers(3, vocabulary, count)

    found = []
    for group, (size, lengths) in enumerate([(7, (5, 1, 30, 6, 1)), (20, (4, 4, 4)), (3, (12,))]):
        prompt = tokens(size)
        for rollout, length in enumerate(lengths):
            found.append(sample(prompt, tokens(length), group=group, rollout=rollout))
    prompt = tokens(5)
    turns = [[True, True, False, False, True, False], [False] * 3 + [True] * 4, [False] * 5]
    for rollout, mask in enumerate(turns):
        found.append(sample(prompt, tokens(len(mask)), group=3, rollout=rollout, mask=mask))
    return found


def plain_logprobs(model: torch.nn.Module, samples: Sequence[Sample]) -> list[torch.Tensor]:
    """Log-probabilities of the trained tokens of each sample, from its own forward pass."""
    found = []
    for one in samples:
        logits = model(input_ids=torch.tensor(one.ids)[None], use_cache=False).logits[0]
        places = np.flatnonzero(one.loss_mask)
        found.append(torch.log_softmax(logits, -1)[places - 1, one.ids[places]])
    return found


def weighted(samples: Sequence[Sample], logprobs: Sequence[torch.Tensor]) -> torch.Tensor:
    """Sum of log-probabilities times the samples' token weights."""
    weights = [torch.tensor(one.token_weight["policy"][one.loss_mask], dtype=torch.float64) for one in samples]
    return torch.stack([(w * x).sum() for w, x in zip(weights, logprobs, strict=True)]).sum()


def split(microbatch: Microbatch, flat: torch.Tensor) -> list[torch.Tensor]:
    """Cut a flat result into the microbatch's samples."""
    return list(flat.split([int(one.loss_mask.sum()) for one in microbatch.samples]))


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Gradients by name, taken away from the model."""
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def largest_difference(mine: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """Largest difference of any gradient relative to its tensor's largest entry (a thousandth of all at least)."""
    assert mine.keys() == theirs.keys()
    floor = 1e-3 * max(float(g.abs().max()) for g in theirs.values())
    return max(float((mine[n] - theirs[n]).abs().max() / theirs[n].abs().max().clamp_min(floor)) for n in mine)


class WideNorm(torch.nn.Module):
    """Root mean square norm in the input's own number type; transformers' norms compute in float32."""

    def __init__(self, norm: torch.nn.Module, offset: float) -> None:
        super().__init__()
        self.weight, self.offset = norm.weight, offset
        self.eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * (self.weight + self.offset)


def widen_norms(model: torch.nn.Module) -> torch.nn.Module:
    """Replace every norm by one that keeps float64, so that float64 tests are of float64 numbers."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            kind = type(child).__name__
            if kind.endswith("RMSNorm"):
                setattr(module, name, WideNorm(child, 1.0 if kind.startswith("Gemma") else 0.0))
    return model
