"""The one-file GRPO gives the library's advantages, loss and gradient, stands alone, and runs."""

import importlib.util
import os
import re
import subprocess
import sys
from math import nan
from pathlib import Path

import numpy as np
import pytest
import torch

from posttrain.algorithms.grpo import GRPO, Config
from posttrain.batches.build import build_samples, weigh
from posttrain.types import Ending, Group, Rollout, Segment, Task, TokenBatch

FILE = Path(__file__).parents[2] / "examples" / "one_file" / "grpo.py"
LENGTHS = [[3, 5, 1, 4], [5, 2, 2, 3], [4, 4, 1, 5]]
REWARDS = [[1.0, 0.25, 0.0, 0.5], [0.3, 0.3, 0.3, 0.3], [0.0, 1.0, 1.0, 0.1]]
PROMPT_LENGTH, WIDTH = 2, 5


@pytest.fixture(scope="module")
def example():
    """The example as a module."""
    spec = importlib.util.spec_from_file_location("one_file_grpo", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def numbers():
    """Mask and three kinds of log-probabilities, [rows, width] each, with NaN where nothing was sampled."""
    mask = torch.tensor([[place < length for place in range(WIDTH)] for row in LENGTHS for length in row])
    random = torch.Generator().manual_seed(3)
    old = -torch.rand(mask.shape, generator=random, dtype=torch.float64) * 3
    new = old + 0.4 * torch.randn(mask.shape, generator=random, dtype=torch.float64)
    ref = old + 0.3 * torch.randn(mask.shape, generator=random, dtype=torch.float64)
    return mask, *(torch.where(mask, values, nan) for values in (new, old, ref))


def rollout(index: int, length: int, reward: float) -> Rollout:
    """A rollout of so many sampled tokens."""
    mask = (False,) * PROMPT_LENGTH + (True,) * length
    segment = Segment(
        ids=tuple(range(len(mask))),
        loss_mask=mask,
        rollout_logprobs=tuple(-1.0 if sampled else nan for sampled in mask),
        versions=tuple(0 if sampled else -1 for sampled in mask),
        turns=tuple(0 if sampled else -1 for sampled in mask),
        prompt_length=PROMPT_LENGTH,
    )
    task = Task(id="t", messages=({"role": "user", "content": "1+1"},))
    return Rollout(
        task=task,
        index=index,
        seed=index,
        segments=(segment,),
        messages=task.messages,
        text="",
        ending=Ending.STOP,
        reward=reward,
    )


def library_loss(algorithm: GRPO, mask, logprobs, old, ref) -> tuple[torch.Tensor, np.ndarray]:
    """The library's way: groups, samples, weight streams, one flat batch. Also returns the advantages per row."""
    groups = []
    for position, (lengths, rewards) in enumerate(zip(LENGTHS, REWARDS, strict=True)):
        rollouts = tuple(rollout(i, n, r) for i, (n, r) in enumerate(zip(lengths, rewards, strict=True)))
        groups.append(Group(position=position, task=rollouts[0].task, rollouts=rollouts))
    advantages = algorithm.advantages(groups)
    samples = weigh(build_samples(groups, advantages), algorithm.needs.streams)
    batch = TokenBatch(
        samples=torch.arange(len(samples))[:, None].expand(mask.shape)[mask],
        sample_count=len(samples),
        advantages=torch.tensor(np.concatenate([s.advantages[s.loss_mask] for s in samples])),
        token_weight={
            part: torch.tensor(np.concatenate([s.token_weight[part][s.loss_mask] for s in samples]))
            for part in algorithm.needs.streams
        },
        old_logprobs=old[mask],
        ref_logprobs=ref[mask],
    )
    loss = algorithm.loss(batch, logprobs[mask], None, None).total
    return loss, np.array([float(a) for row in advantages for a in row])


def losses_and_gradients(example, numbers, config: Config, **options):
    """Loss and gradient of both, in this order: example's loss, library's loss, example's gradient, library's."""
    mask, new, old, ref = numbers
    ours, theirs = (new.clone().requires_grad_() for _ in range(2))
    advantages = example.group_advantages(torch.tensor(REWARDS, dtype=torch.float64)).flatten()
    one = example.grpo_loss(ours, old, ref, mask, advantages, **options)
    other, _ = library_loss(GRPO(config), mask, theirs, old, ref)
    one.backward()
    other.backward()
    return one.item(), other.item(), ours.grad, theirs.grad


def test_the_advantages_are_the_librarys(example, numbers):
    mask, new, old, ref = numbers
    _, expected = library_loss(GRPO(Config()), mask, new, old, ref)
    actual = example.group_advantages(torch.tensor(REWARDS, dtype=torch.float64)).flatten().numpy()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12)


def test_a_group_of_equal_rewards_moves_nothing(example):
    assert torch.equal(torch.zeros(1, 8), example.group_advantages(torch.full((1, 8), 0.7)))


CASES = [
    (Config(), {}),
    (Config(kl_coefficient=0.0), {"beta": 0.0}),
    (Config(clip_low=0.1, clip_high=0.3), {"clip_low": 0.1, "clip_high": 0.3}),
]


@pytest.mark.parametrize(("config", "options"), CASES, ids=["paper", "without KL", "clip-higher"])
def test_the_loss_is_the_librarys(example, numbers, config, options):
    one, other, _, _ = losses_and_gradients(example, numbers, config, **options)
    assert other == pytest.approx(one, abs=1e-12)


@pytest.mark.parametrize(("config", "options"), CASES, ids=["paper", "without KL", "clip-higher"])
def test_the_gradient_is_the_librarys(example, numbers, config, options):
    _, _, one, other = losses_and_gradients(example, numbers, config, **options)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_some_tokens_are_clipped_so_that_the_comparison_means_something(example, numbers):
    mask, new, old, _ = numbers
    outside = ((new - old).exp() - 1).abs()[mask] > 0.2
    assert 0 < int(outside.sum()) < len(outside)


def test_what_was_not_sampled_gets_no_gradient(example, numbers):
    mask = numbers[0]
    _, _, gradient, _ = losses_and_gradients(example, numbers, Config())
    assert 0 == int(torch.count_nonzero(gradient[~mask]))


@pytest.mark.parametrize(
    ("completion", "expected"), [("51", 1.0), ("41", 0.25), ("5", 0.25), ("510", 1 / 3), ("", 0.0)]
)
def test_the_reward_prefers_the_right_answer(example, completion, expected):
    assert expected == pytest.approx(example.score(completion, "51"))


def test_the_answer_is_the_sum_backwards(example):
    problems = example.draw_problems(20, np.random.default_rng(0))
    assert all(str(sum(map(int, prompt[:-1].split("+"))))[::-1] == answer for prompt, answer in problems)


def test_the_end_token_is_trained(example):
    ids, mask = example.sample(example.build_model(0), torch.tensor([example.tokenise("7+8=")] * 64))
    completions = ids[:, 4:]
    assert bool(mask[completions == example.END].all())


def test_nothing_is_sampled_after_the_end_token(example):
    ids, mask = example.sample(example.build_model(0), torch.tensor([example.tokenise("7+8=")] * 64))
    ended = (ids[:, 4:] == example.END).int().cumsum(1).roll(1, 1)
    ended[:, 0] = 0
    assert not bool((mask & (ended > 0)).any())


def test_the_file_needs_nothing_of_the_library_and_is_short():
    text = FILE.read_text(encoding="utf-8")
    imports = set(re.findall(r"^(?:import|from) (\w+)", text, re.M)) - set(sys.stdlib_module_names)
    assert ({"torch", "transformers", "numpy"}, True) == (imports, len(text.splitlines()) <= 250)


def test_it_runs_as_a_script(tmp_path):
    command = [sys.executable, str(FILE), "--steps", "2", "--warm-steps", "2", "--prompts", "2", "--group-size", "4"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (0, True) == (done.returncode, "held-out problems right" in done.stdout), done.stderr


@pytest.mark.slow
def test_it_learns(tmp_path):
    done = subprocess.run(
        [sys.executable, str(FILE)], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=True
    )
    before, after = map(float, re.findall(r"([\d.]+)%", done.stdout.splitlines()[-1]))
    assert before + 5 < after
