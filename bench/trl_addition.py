"""The peer's curve of `bench.time_to_reward`: TRL's GRPO on reversed addition from a given warm start.

    PATH_TO_PYTHON_WITH_TRL -m bench.trl_addition WARM TARGET.jsonl [--seed N] [--budget CPU_SECONDS]

Runs in the interpreter that has TRL. Same sums, prompts, sizes and rate; TRL's defaults of the algorithm (dapo, group
std, no KL); float32, no checkpointing, one thread.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback

SUMS = [(a, b) for a in range(100) for b in range(100)]
random.Random(123).shuffle(SUMS)


def exact(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """1 for exactly the answer."""
    return [float(text == wanted) for text, wanted in zip(completions, answer, strict=True)]


class Curve(TrainerCallback):
    """Writes a line per step and stops when the budget is spent."""

    def __init__(self, target: Path, budget: float) -> None:
        self.file = target.open("w")
        self.budget = budget
        self.start = (time.process_time(), time.perf_counter())

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """One line."""
        if not logs or "reward" not in logs:
            return
        cpu, wall = time.process_time() - self.start[0], time.perf_counter() - self.start[1]
        line = {"step": state.global_step, "cpu": round(cpu, 2), "wall": round(wall, 2)}
        self.file.write(json.dumps(line | {name: round(float(logs[name]), 4) for name in ("reward", "entropy")}) + "\n")
        self.file.flush()
        control.should_training_stop = cpu > self.budget


def main() -> None:
    """Train and write the curve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("warm", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=90.0)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    rows = [{"prompt": f"{a:02d}+{b:02d}=", "answer": f"{a + b:03d}"[::-1]} for a, b in SUMS[:9000]]
    with tempfile.TemporaryDirectory() as folder:
        config = trl.GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=256,
            num_generations=8,
            max_completion_length=6,
            max_steps=1000,
            learning_rate=3e-4,
            lr_scheduler_type="constant",
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=options.seed,
        )
        trainer = trl.GRPOTrainer(
            model=str(options.warm),
            reward_funcs=exact,
            args=config,
            train_dataset=Dataset.from_list(rows),
            processing_class=AutoTokenizer.from_pretrained(options.warm),
        )
        trainer.add_callback(Curve(options.target, options.budget))
        trainer.train()


if __name__ == "__main__":
    main()
