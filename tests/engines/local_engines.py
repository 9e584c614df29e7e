"""Small local engines and requests for the tests of the local engine."""

import asyncio
import itertools

import torch

from posttrain.engines.local import Config, LocalEngine
from posttrain.functional.sampling import processed_logprobs
from posttrain.types import Sampling
from tests.tiny_models import build_tiny

WINDOW = 512
PROMPTS = [[5, 9, 33], [7, 12, 60, 3, 8, 8, 21], [44, 2, 1, 19]]


class Letters:
    """A tokenizer whose token i is one letter."""

    def decode(self, ids, skip_special_tokens, clean_up_tokenization_spaces):
        assert (False, False) == (skip_special_tokens, clean_up_tokenization_spaces)
        return "".join(chr(ord("A") + token) for token in ids)


def build_engine(family="qwen3", *, model=None, stop_ids=(), window=WINDOW, **config):
    model = build_lively(family) if model is None else model
    return LocalEngine(Config(**config), model, Letters(), frozenset(stop_ids), window)


def build_lively(family="qwen3"):
    """A tiny model that is sure of some tokens."""
    model = build_tiny(family)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(5)
    return model


def run(engine, requests):
    """Generate (prompt, sampling, seed) requests together."""

    async def all_of_them():
        return await asyncio.gather(*[engine.generate(p, sampling, seed=seed) for p, sampling, seed in requests])

    return asyncio.run(all_of_them())


def mixed_requests(rows=12):
    lengths = itertools.cycle([3, 11, 7, 1, 20])
    return [
        (PROMPTS[i % 3], Sampling(max_new_tokens=length), i) for i, length in zip(range(rows), lengths, strict=False)
    ]


def recompute(model, prompt, completion, sampling):
    """Log-probability of each sampled token from one plain forward over the whole row."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *completion.ids]]), use_cache=False).logits[0]
    logits = logits[len(prompt) - 1 : -1]
    logprobs = processed_logprobs(logits, sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p)
    return logprobs.gather(1, torch.tensor(completion.ids).unsqueeze(1)).squeeze(1).tolist()
