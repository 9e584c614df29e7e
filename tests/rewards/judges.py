"""Trained reward models as folders, and rollouts they read."""

from dataclasses import replace
from functools import cache

import torch

from posttrain.models.tiny import build_toy
from posttrain.models.values import ValueHead
from posttrain.types import Ending
from tests.algorithms.examples import rollout

SIZES = {"hidden": 32, "intermediate": 48, "layers": 1, "heads": 4, "kv_heads": 2, "window": 64}


@cache
def toy():
    """A tiny model and its tokenizer."""
    return build_toy(seed=0, **SIZES)


def judge_folder(folder, *, seed=0, scale=1.0):
    """A model folder with a random head beside it."""
    model, tokenizer = toy()
    head = ValueHead(SIZES["hidden"])
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        head.linear.weight.copy_(scale * torch.randn(1, SIZES["hidden"], generator=generator))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    head.save(folder)
    return str(folder)


def expected(folder, ids):
    """The score of a row from the model's own forward."""
    head = ValueHead(SIZES["hidden"])
    head.load(folder)
    with torch.no_grad():
        hidden = toy()[0].model(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state
        return float(head(hidden[0, -1:]))


def written(text, *, index=0, closed=True, after=()):
    """A rollout that wrote the text after a prompt, then read ``after``."""
    _, tokenizer = toy()
    encode = lambda words: tokenizer.encode(words, add_special_tokens=False)  # noqa: E731
    prompt, answer = encode("1+1="), encode(text) + [tokenizer.eos_token_id] * closed
    one = rollout(index, None)
    ids = (*prompt, *answer, *after)
    segment = replace(
        one.segments[0],
        ids=ids,
        loss_mask=tuple(len(prompt) <= place < len(prompt) + len(answer) for place in range(len(ids))),
        turns=tuple(0 if len(prompt) <= place < len(prompt) + len(answer) else -1 for place in range(len(ids))),
        prompt_length=len(prompt),
    )
    ending = Ending.STOP if closed else Ending.LENGTH
    return replace(one, segments=(segment,), text=text, ending=ending)


def sampled(one):
    """The ids up to the last sampled one."""
    segment = one.segments[0]
    return segment.ids[: max(place for place, trained in enumerate(segment.loss_mask) if trained) + 1]
