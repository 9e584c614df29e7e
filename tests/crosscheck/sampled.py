"""TRL's online trainers on answers that are given: everything behind the sampling is TRL's own code."""

from typing import Any

import torch

from tests.crosscheck import material, ours, theirs

FLAT = [
    (prompt, answer) for prompt, answers in zip(material.PROMPTS, material.ANSWERS, strict=True) for answer in answers
]


def online(name: str = "GRPO", *, model=None, rewards=material.REWARDS, masks=None, reference=None, **options) -> Any:
    """A trainer whose sampler says `material.ANSWERS` and whose reward functions say ``rewards``.

    ``rewards`` may be one table, or one by reward function; ``reference`` is set afterwards, for TRL would load one.
    """
    tables = rewards if isinstance(rewards, dict) else {"given": rewards}
    functions = [_reward(name, [r for row in table for r in row]) for name, table in tables.items()]
    beta, module = options.pop("beta", 0.0), "trl.experimental.gmpo" if name == "GMPO" else "trl"
    options = {"num_generations": 4, "beta": 0.0, "max_completion_length": ours.LIMIT} | options
    model = material.policy() if model is None else model
    built = theirs.trainer(name, model, "prompt", module=module, parts={"reward_funcs": functions}, **options)
    ids = [list(prompt) for prompt, _ in FLAT], [list(answer) for _, answer in FLAT]
    if name == "RLOO":
        built._generate = lambda prompts: (*ids, ["" for _ in prompts])
    else:
        built.rollout_func = lambda prompts, trainer: _rollouts(*ids, masks)
    if reference is not None:
        theirs.utils.add_fused_lm_head(reference)
        built.beta, built.ref_model = beta, reference
    built.model.train()
    return built


def scored(trainer: Any) -> dict[str, torch.Tensor]:
    """TRL's batch: padded rows, advantages, reference log-probabilities."""
    return trainer._generate_and_score_completions([{"prompt": theirs.ROW["prompt"]} for _ in FLAT])


def anchored(trainer: Any, batch: dict[str, torch.Tensor], old: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The batch with the old policy's log-probabilities, by TRL's own forward."""
    theirs.utils.add_fused_lm_head(old)
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    with torch.no_grad():
        rows = trainer._get_per_token_logps_and_entropies(old, ids, mask, batch["completion_ids"].size(1))[0]
    return batch | {"old_per_token_logps": rows}


def evaluate(*, old=None, name: str = "GRPO", **options) -> ours.Found:
    """TRL's loss and gradient on the given answers."""
    trainer = online(name, **options)
    batch = scored(trainer)
    if old is not None:
        batch = anchored(trainer, batch, old)
    return theirs.found(trainer._compute_loss(trainer.model, batch), trainer.model)


def _reward(name: str, values: list[float]):
    def reward(completions, **columns):
        return values

    reward.__name__ = name
    return reward


def _rollouts(prompts, answers, masks) -> dict[str, Any]:
    found = {"prompt_ids": prompts, "completion_ids": answers, "logprobs": [[-1.0] * len(a) for a in answers]}
    if masks is not None:
        flat = [mask for row in masks for mask in row]
        found["env_mask"] = [list(m or [1] * len(a)) for m, a in zip(flat, answers, strict=True)]
    return found
