"""AdamW with a schedule, global clipping and a state that is stored tensor by tensor.

AdamW: Loshchilov and Hutter 2019, arXiv 1711.05101. Decay touches matrices only, never norms, biases or embeddings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import torch

from posttrain.errors import RecordError

Schedule = Literal["constant", "linear", "cosine"]


def scheduled_rate(peak: float, step: int, *, total: int, warmup: int, schedule: Schedule) -> float:
    """Return the learning rate of step number ``step`` (from 0) of ``total``.

    It rises linearly over ``warmup`` steps, the first of which already moves, then stays, falls linearly to 0, or
    along half a cosine to 0; it would reach 0 one step after the last.
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    if schedule == "linear":
        return peak * (1 - progress)
    if schedule == "cosine":
        return peak * 0.5 * (1 + math.cos(math.pi * progress))
    return peak


def build_adamw(
    model: torch.nn.Module, *, betas: tuple[float, float], eps: float, weight_decay: float
) -> torch.optim.AdamW:
    """Return AdamW over the parameters that train, fused where every one of them allows it."""
    embeddings = {id(p) for m in model.modules() if isinstance(m, torch.nn.Embedding) for p in m.parameters()}
    trainable = [p for p in model.parameters() if p.requires_grad]
    decayed = [p for p in trainable if p.ndim >= 2 and id(p) not in embeddings]
    names = {id(p) for p in decayed}
    groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": [p for p in trainable if id(p) not in names], "weight_decay": 0.0},
    ]
    fused = all(p.is_floating_point() and p.device.type in ("cpu", "cuda", "mps") for p in trainable)
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=0.0, betas=betas, eps=eps, fused=fused or None)


def global_norm(tensors: Iterable[torch.Tensor]) -> float:
    """Return the norm of all tensors together, summed in float64; not finite if any entry is not."""
    return math.sqrt(sum(float(torch.linalg.vector_norm(t, dtype=torch.float64)) ** 2 for t in tensors))


def clip_gradients(gradients: Sequence[torch.Tensor], norm: float, limit: float | None) -> None:
    """Scale the gradients in place so that their global norm, now ``norm``, is at most ``limit``; None leaves them."""
    if limit is not None and norm > limit:
        torch._foreach_mul_(list(gradients), limit / norm)


def optimizer_tensors(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> dict[str, torch.Tensor]:
    """Return the state as ``parameter name/state name`` -> tensor; ``names`` maps id(parameter) to its name."""
    return {
        f"{names[id(parameter)]}/{key}": value.detach().contiguous()
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
    }


def restore_optimizer(
    optimizer: torch.optim.Optimizer, names: Mapping[int, str], tensors: Mapping[str, torch.Tensor]
) -> None:
    """Put back what `optimizer_tensors` gave; raises RecordError if it belongs to other parameters."""
    parameters = {names[id(p)]: p for group in optimizer.param_groups for p in group["params"]}
    state: dict[torch.Tensor, dict[str, Any]] = {}
    for name, value in tensors.items():
        owner, _, key = name.rpartition("/")
        parameter = parameters.get(owner)
        if parameter is None or (key != "step" and parameter.shape != value.shape):
            raise RecordError(
                f"optimizer state '{name}' {tuple(value.shape)} fits no parameter that trains here. "
                "Resume with the model and the LoRA settings of the run that wrote it"
            )
        state.setdefault(parameter, {})[key] = value.to(parameter.device if value.ndim else "cpu").clone()
    optimizer.state.clear()
    optimizer.state.update(state)
