"""GRPO in one file: a tiny Qwen3 learns to add, writing the sum backwards. No posttrain; half a minute on a CPU.

    python examples/one_file/grpo.py                 # warm start, then 80 steps of GRPO
    python examples/one_file/grpo.py --steps 3       # a quick look

For a prompt such as "7+8=" the right completion is "51" and the end token: 15 backwards, so that each digit depends
on digits already seen (DIGITS = 2 makes it hard). The formula is DeepSeekMath's (arXiv 2402.03300, eq. 3 and 4):

    A_i  = (r_i - mean(r)) / (std(r) + epsilon)                      std with n - 1
    r_it = pi(token_t) / pi_old(token_t)
    L    = mean_i mean_t [ -min(r_it A_i, clip(r_it, 1 - low, 1 + high) A_i) + beta k3_it ]

posttrain's own `algorithms/grpo.py` gives the same loss and gradient; a test compares the two.
"""

import argparse
import copy
import math
import time

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

CHARACTERS = "0123456789+="
END = len(CHARACTERS)
PAD = END + 1
DIGITS = 1
MAX_NEW_TOKENS = DIGITS + 3


# --- the task ---------------------------------------------------------------------------------------------------------


def draw_problems(count: int, random: np.random.Generator) -> list[tuple[str, str]]:
    """Return (prompt, right completion) pairs; all prompts have the same length, so nothing is padded on the left."""
    pairs = random.integers(0, 10**DIGITS, size=(count, 2))
    return [(f"{a:0{DIGITS}d}+{b:0{DIGITS}d}=", str(a + b)[::-1]) for a, b in pairs]


def tokenise(text: str) -> list[int]:
    """One token per character."""
    return [CHARACTERS.index(character) for character in text]


def detokenise(ids: list[int]) -> str:
    """Text up to the end token; a padding token, which the model may also sample, is a question mark."""
    text = ids[: ids.index(END)] if END in ids else ids
    return "".join(CHARACTERS[i] if i < END else "?" for i in text)


def score(completion: str, answer: str) -> float:
    """1 for the right answer; for a wrong one, half the share of digits that are in their place."""
    if completion == answer:
        return 1.0
    hits = sum(a == b for a, b in zip(completion, answer, strict=False))
    return 0.5 * hits / max(len(completion), len(answer))


# --- the model --------------------------------------------------------------------------------------------------------


def build_model(seed: int) -> Qwen3ForCausalLM:
    """Return a random Qwen3 of about two hundred thousand parameters."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=PAD + 1,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=24,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        bos_token_id=None,
        eos_token_id=END,
    )
    return Qwen3ForCausalLM(config).eval()


def token_logprobs(model: Qwen3ForCausalLM, ids: torch.Tensor, prompt_length: int) -> torch.Tensor:
    """Return log pi of each completion token, [rows, completion length]; rows are padded on the right."""
    logits = model(input_ids=ids, use_cache=False).logits[:, prompt_length - 1 : -1]
    return logits.log_softmax(-1).gather(-1, ids[:, prompt_length:, None]).squeeze(-1)


@torch.no_grad()
def sample(model: Qwen3ForCausalLM, prompts: torch.Tensor, greedy: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Return whole rows [rows, length] and the mask of sampled tokens [rows, completion length], end token included."""
    ids, alive, masks = prompts, torch.ones(len(prompts), dtype=torch.bool), []
    for _ in range(MAX_NEW_TOKENS):
        logits = model(input_ids=ids, use_cache=False).logits[:, -1]
        token = logits.argmax(-1) if greedy else torch.multinomial(logits.softmax(-1), 1).squeeze(-1)
        token = torch.where(alive, token, PAD)
        masks.append(alive)
        ids = torch.cat([ids, token[:, None]], dim=1)
        alive = alive & (token != END)
    return ids, torch.stack(masks, dim=1)


# --- the algorithm ----------------------------------------------------------------------------------------------------


def group_advantages(rewards: torch.Tensor, epsilon: float = 1e-6) -> torch.Tensor:
    """Standardise rewards [groups, group size] within each group; a group of equal rewards gets exactly 0."""
    centred = rewards - rewards.mean(1, keepdim=True)
    scaled = centred / (rewards.std(1, correction=1, keepdim=True) + epsilon)
    equal = rewards.amax(1, keepdim=True) == rewards.amin(1, keepdim=True)
    return torch.where(equal, 0.0, scaled)


def grpo_loss(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    ref_logprobs: torch.Tensor,
    mask: torch.Tensor,
    advantages: torch.Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    beta: float = 0.04,
) -> torch.Tensor:
    """Return the loss of rows [rows, length]: mean over a row's tokens, then mean over rows. ``advantages``: [rows].

    What stands where ``mask`` is False is selected away, never multiplied by zero: it may even be NaN.
    """
    filled = [torch.where(mask, values, 0.0) for values in (logprobs, old_logprobs, ref_logprobs)]
    ratio = (filled[0] - filled[1]).exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    surrogate = torch.minimum(ratio * advantages[:, None], clipped * advantages[:, None])
    gap = filled[2] - filled[0]
    k3 = gap.exp() - 1 - gap
    per_token = torch.where(mask, -surrogate + beta * k3, 0.0)
    return (per_token.sum(1) / mask.sum(1)).mean()


# --- the loops --------------------------------------------------------------------------------------------------------


def warm_start(model: Qwen3ForCausalLM, steps: int, random: np.random.Generator) -> None:
    """Imitate right answers for a few steps (SFT), so that sampling finds some rewards to learn from."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    for _ in range(steps):
        problems = draw_problems(64, random)
        rows = [[*tokenise(prompt + answer), END] for prompt, answer in problems]
        width = max(map(len, rows))
        ids = torch.tensor([row + [PAD] * (width - len(row)) for row in rows])
        prompt_length = len(problems[0][0])
        mask = ids[:, prompt_length:] != PAD
        loss = -torch.where(mask, token_logprobs(model, ids, prompt_length), 0.0).sum() / mask.sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def evaluate(model: Qwen3ForCausalLM, problems: list[tuple[str, str]]) -> float:
    """Return the share of problems that greedy decoding solves."""
    prompts = torch.tensor([tokenise(prompt) for prompt, _ in problems])
    ids, _ = sample(model, prompts, greedy=True)
    completions = [detokenise(row) for row in ids[:, prompts.shape[1] :].tolist()]
    return float(np.mean([c == answer for c, (_, answer) in zip(completions, problems, strict=True)]))


def grpo_step(
    model: Qwen3ForCausalLM,
    reference: Qwen3ForCausalLM,
    optimizer: torch.optim.Optimizer,
    problems: list[tuple[str, str]],
    group_size: int,
) -> dict[str, float]:
    """Sample a group per problem, score it, and take one optimizer step; return numbers to watch."""
    prompts = torch.tensor([tokenise(prompt) for prompt, _ in problems]).repeat_interleave(group_size, 0)
    prompt_length = prompts.shape[1]
    ids, mask = sample(model, prompts)
    answers = [answer for _, answer in problems for _ in range(group_size)]
    completions = [detokenise(row) for row in ids[:, prompt_length:].tolist()]
    rewards = torch.tensor([score(c, a) for c, a in zip(completions, answers, strict=True)], dtype=torch.float64)
    advantages = group_advantages(rewards.view(len(problems), group_size)).flatten().float()

    logprobs = token_logprobs(model, ids, prompt_length)
    with torch.no_grad():
        ref_logprobs = token_logprobs(reference, ids, prompt_length)
    # One update per batch: the policy that sampled is the policy that trains, so old is current without gradient.
    loss = grpo_loss(logprobs, logprobs.detach(), ref_logprobs, mask, advantages)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if math.isfinite(norm):
        optimizer.step()
    optimizer.zero_grad()
    return {
        "reward": float(rewards.mean()),
        "right": float(np.mean([c == a for c, a in zip(completions, answers, strict=True)])),
        "length": float(mask.sum(1).double().mean()),
        "grad norm": float(norm),
    }


def main() -> None:
    """Warm start, GRPO, and the share of solved problems before and after."""
    parser = argparse.ArgumentParser(description="GRPO on reversed addition, in one file")
    parser.add_argument("--steps", type=int, default=80, help="optimizer steps of GRPO")
    parser.add_argument("--warm-steps", type=int, default=120, help="optimizer steps of the warm start")
    parser.add_argument("--prompts", type=int, default=16, help="prompts per step")
    parser.add_argument("--group-size", type=int, default=16, help="completions per prompt")
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    random = np.random.default_rng(options.seed)
    held_out = draw_problems(256, np.random.default_rng(options.seed + 1))
    model = build_model(options.seed)
    warm_start(model, options.warm_steps, random)
    before = evaluate(model, held_out)
    print(f"after the warm start {before:.1%} of {len(held_out)} held-out problems are right")

    reference = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, weight_decay=0.0)
    start = time.monotonic()
    for step in range(1, options.steps + 1):
        numbers = grpo_step(model, reference, optimizer, draw_problems(options.prompts, random), options.group_size)
        if step <= 3 or step % 10 == 0:
            shown = "  ".join(f"{name} {value:.3f}" for name, value in numbers.items())
            print(f"step {step:4d}  {shown}  {time.monotonic() - start:.0f} s")
    print(f"held-out problems right: {before:.1%} before GRPO, {evaluate(model, held_out):.1%} after")


if __name__ == "__main__":
    main()
