"""A folder with all that a small run needs: a model of a few thousand weights, tasks, a reward and a recipe."""

import json
from dataclasses import dataclass
from pathlib import Path

import tomli_w

from posttrain.models.tiny import build_toy
from tests.faults.commands import Done, Server

STEPS, PROMPTS = 6, 3
REWARDS = """
import time


def digits(rollout):
    return sum(letter.isdigit() for letter in rollout.text) / 4


def spoilt(rollout):
    return 1.0 if int(rollout.task.answer) % 2 == 0 else float(sum(map(ord, rollout.text)) % 2)


def nan(rollout):
    return float("nan")


def text(rollout):
    return "good"


def none(rollout):
    return None


def raising(rollout):
    raise RuntimeError("the judge is out")


def hanging(rollout):
    time.sleep(60)


def too_few(prompts, completions, **columns):
    return [1.0]


def raising_later(rollout, calls=[]):
    calls.append(1)
    if len(calls) > 24:
        raise RuntimeError("the judge has gone home")
    return digits(rollout)
"""
ONLINE = {
    "run": {"name": "tiny", "steps": STEPS, "checkpoint_every": 2},
    "model": {"path": "model"},
    "tasks": {"path": "tasks.jsonl"},
    "algorithm": {"type": "grpo", "kl_coefficient": 0.0},
    "rewards": [{"type": "function", "name": "digits", "function": "my_rewards:digits", "inline": True}],
    "rollouts": {"prompts_per_step": PROMPTS, "group_size": 4, "max_new_tokens": 5},
    "learner": {"type": "local", "learning_rate": 1e-2},
}
EVALUATION = {"tasks": {"path": "held_out.jsonl"}, "every": 3, "samples": 2}
OFFLINE = {
    "run": {"name": "tiny", "steps": STEPS, "checkpoint_every": 2},
    "model": {"path": "model"},
    "tasks": {"path": "tasks.jsonl"},
    "algorithm": {"type": "sft"},
    "rewards": [{"type": "exact"}],
    "rollouts": {"max_new_tokens": 5},
    "batches": {"demonstrations_per_step": PROMPTS},
    "learner": {"type": "local", "learning_rate": 1e-2, "schedule": "cosine", "warmup_steps": 2},
    "evaluation": EVALUATION,
}
VARIANTS = {
    "plain": ONLINE,
    "evaluated": ONLINE | {"evaluation": EVALUATION},
    "kl": ONLINE | {"algorithm": {"type": "grpo", "kl_coefficient": 0.04}},
    "minibatches": ONLINE | {"batches": {"epochs": 2, "minibatches": 2, "tokens_per_microbatch": 64}},
    "lora": ONLINE | {"model": {"path": "model", "lora": {"rank": 2, "dropout": 0.1}}},
    "refill": ONLINE
    | {
        "run": {"name": "tiny", "steps": STEPS, "checkpoint_every": 1, "seed": 7},
        "algorithm": {"type": "dapo"},
        "rewards": [{"type": "function", "name": "spoilt", "function": "my_rewards:spoilt", "inline": True}],
    },
    "offline": OFFLINE,
}
"""Recipes that must all survive."""


def write_lines(path, rows):
    """Write rows as JSON lines and return the path."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def furnish(folder: Path):
    """Put model, tasks, rewards and recipes into a folder."""
    model, tokenizer = build_toy(seed=0, hidden=16, intermediate=32, layers=1, heads=2, kv_heads=1, window=64)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    sums = [{"question": f"{a}+{b}=", "answer": str(a + b)} for a in range(4) for b in range(4)]
    write_lines(folder / "tasks.jsonl", sums[:13])
    write_lines(folder / "held_out.jsonl", sums[13:])
    (folder / "my_rewards.py").write_text(REWARDS)
    for name, table in VARIANTS.items():
        (folder / f"{name}.toml").write_text(tomli_w.dumps(table))
    return folder


@dataclass(frozen=True, kw_only=True, slots=True)
class Workplace:
    """The furnished folder and the server that works in it."""

    folder: Path
    """Where model, tasks and recipes lie."""
    server: Server
    """Runs the commands."""

    def train(self, variant, run, *overrides, **options) -> Done:
        """``posttrain train VARIANT.toml run.directory=RUN …`` without the checks of the first step."""
        words = (f"{variant}.toml", f"run.directory={run}", *overrides, "--no-check")
        return self.server.run("train", *words, folder=self.folder, **options)

    def resume(self, run, *words, **options) -> Done:
        """``posttrain train --resume RUN``."""
        return self.server.run("train", "--resume", run, *words, folder=self.folder, **options)

    def whole(self, variant) -> Path:
        """The run directory of an uninterrupted run, made once."""
        run = self.folder / f"whole-{variant}"
        if not run.exists():
            done = self.train(variant, run)
            assert 0 == done.code, done.err
        return run
