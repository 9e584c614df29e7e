"""What both sides are given: tiny models that disagree, prompts with sampled answers, and a tokenizer without files."""

import tokenizers
import torch
import transformers

from posttrain.types import Ending, Group, Rollout, Segment, Task
from tests.tiny_models import build_tiny

VOCABULARY = 61
PAD, END = 0, 2
PROMPTS = ((5, 9, 11), (7, 3, 8, 20, 31))
ANSWERS = (
    ((4, 12, 2), (33, 6, 17, 40, 2), (50, 2), (21, 22, 23, 24)),
    ((13, 13, 2), (9, 41, 2), (60, 59, 58, 57, 56, 55, 54, 2), (10, 2)),
)
"""Sampled tokens by prompt and rollout; one answer was cut off before its stop token."""
REWARDS = ((1.0, 0.0, 0.25, 1.0), (0.2, 0.7, 0.2, 0.1))


def policy(seed: int = 0, noise: float = 0.0) -> torch.nn.Module:
    """A tiny model whose distribution is far from uniform; ``noise`` moves its weights at random by that much."""
    model = build_tiny(initializer_range=0.3, seed=0)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(noise * torch.randn(parameter.shape, generator=generator))
    return model


def old_policy() -> torch.nn.Module:
    """The policy before some updates: token ratios lie on both sides of every clip."""
    return policy(seed=1, noise=0.02)


def reference() -> torch.nn.Module:
    """The frozen model that KL and preference losses measure from."""
    return policy(seed=2, noise=0.02)


def rollout(prompt, answer, reward, index=0, mask=None) -> Rollout:
    """One answer as posttrain samples it; ``mask`` says which of its tokens the policy wrote."""
    count = len(prompt)
    sampled = (False,) * count + tuple(mask or (True,) * len(answer))
    segment = Segment(
        ids=(*prompt, *answer),
        loss_mask=sampled,
        rollout_logprobs=tuple(-1.0 if s else float("nan") for s in sampled),
        versions=tuple(0 if s else -1 for s in sampled),
        turns=tuple(0 if s else -1 for s in sampled),
        prompt_length=count,
    )
    ending = Ending.STOP if answer[-1] == END else Ending.LENGTH
    return Rollout(
        task=TASK, index=index, seed=index, segments=(segment,), messages=(), text="", ending=ending, reward=reward
    )


TASK = Task(id="t", messages=({"role": "user", "content": "?"},))


def group(position, prompt, answers, rewards, masks=None) -> Group:
    """Rollouts of one prompt."""
    masks = masks or [None] * len(answers)
    rows = zip(answers, rewards, masks, strict=True)
    members = tuple(rollout(prompt, answer, reward, i, mask) for i, (answer, reward, mask) in enumerate(rows))
    return Group(position=position, task=TASK, rollouts=members)


def online_groups(rewards=REWARDS, masks=None) -> list[Group]:
    """Two prompts with four scored rollouts each."""
    masks = masks or [None] * len(PROMPTS)
    rows = zip(PROMPTS, ANSWERS, rewards, masks, strict=True)
    return [group(i, *row) for i, row in enumerate(rows)]


PAIRS = tuple(
    (PROMPTS[prompt], ANSWERS[prompt][chosen], ANSWERS[prompt][rejected])
    for prompt, chosen, rejected in ((0, 0, 1), (0, 3, 2), (1, 1, 2))
)
"""Prompt, chosen and rejected answer: the chosen one is shorter, longer and shorter."""


def pair_groups(pairs=PAIRS) -> list[Group]:
    """Each pair as a group of two."""
    return [group(i, prompt, (chosen, rejected), (1.0, 0.0)) for i, (prompt, chosen, rejected) in enumerate(pairs)]


LABELS = tuple(
    (PROMPTS[prompt], ANSWERS[prompt][answer], good)
    for prompt, answer, good in ((0, 0, True), (1, 2, False), (0, 1, False), (1, 0, True), (0, 3, True))
)
"""Prompt, answer and whether it is good."""


def label_groups() -> list[Group]:
    """Each labelled answer as a group of its own."""
    return [group(i, prompt, (answer,), (float(good),)) for i, (prompt, answer, good) in enumerate(LABELS)]


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    """A word is a token: ``w7`` is 7. It needs no file."""
    words = {f"w{i}": i for i in range(VOCABULARY)}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w1"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token=f"w{PAD}", eos_token=f"w{END}", unk_token="w1"
    )
