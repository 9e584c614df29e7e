"""Time to reward on reversed addition: GRPO with TRL's settings, ours on the same task, model and warm start rule.

    python -m bench.time_to_reward TARGET.jsonl [--seed N] [--models FOLDER] [--warm FOLDER] [--budget CPU_SECONDS]

Protocol of the recorded TRL curves (bench/curves/trl_addition_seed*.jsonl): the character model of 1 M; ``aa+bb=``,
answer of three digits, the least significant first; 9,000 pairs; warm start by SFT (batch 64, rate 1e-3) to a quarter
of 512 held-out sums solved greedily; then 32 prompts x 8, at most 6 tokens, token mean, group std, no KL, constant rate
3e-4, one thread. One line per step with CPU seconds since the first; the held-out test's are not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from bench.models import build
from bench.reward_table import GOALS, reached
from posttrain.assemble import Assembly, assemble, prepare
from posttrain.config import Recipe, validate
from posttrain.launch import environment, make_session
from posttrain.loops import offline, sync
from posttrain.loops.session import Session, silent
from posttrain.models.load import load_model
from posttrain.models.threads import ThreadPlan
from posttrain.records.run_directory import RunDirectory
from posttrain.tasks.source import task_set
from posttrain.types import Rollout, Sampling

SUMS = [(a, b) for a in range(100) for b in range(100)]
random.Random(123).shuffle(SUMS)
TRAIN, TEST = SUMS[:9000], SUMS[9000:9512]


def ask(a: int, b: int) -> str:
    """The prompt."""
    return f"{a:02d}+{b:02d}="


def answer(a: int, b: int) -> str:
    """Three digits, the least significant first."""
    return f"{a + b:03d}"[::-1]


def exact(rollout: Rollout) -> float:
    """1 for exactly the answer."""
    return float(rollout.text == rollout.task.answer)


def recipe(algorithm: dict[str, Any], model: str, seed: int, **sections: Any) -> Recipe:
    """A recipe over tasks in memory."""
    table = {
        "run": {"name": "time_to_reward", "steps": 10**6, "seed": seed},
        "model": {"path": model},
        "tasks": {"path": "<sums>"},
        "algorithm": algorithm,
        **sections,
    }
    return validate(Recipe, table, where="bench")


def session_of(settings: Recipe, rows: list[dict[str, Any]], folder: str, *, imitate: bool) -> tuple[Session, Assembly]:
    """A session without a person."""
    torch.set_num_threads(1)
    loaded = load_model(settings.model, seed=0)
    assembly = assemble(prepare(settings, tasks=task_set(rows, for_imitation=imitate)), loaded=loaded)
    plan = ThreadPlan(threads=1, reason="bench", environment={})
    run = RunDirectory.create(Path(folder) / "run", settings, environment(settings, plan, assembly))
    return make_session(assembly, run, silent()), assembly


def held_out(assembly: Assembly) -> float:
    """Share of the test sums solved greedily."""
    sampling = Sampling(max_new_tokens=5, temperature=0.0)
    engine, chat = assembly.engine, assembly.chat

    async def solve() -> int:
        asked = [chat.prompt_ids([{"role": "user", "content": ask(*pair)}]) for pair in TEST]
        found = await asyncio.gather(*(engine.generate(ids, sampling, seed=0) for ids in asked))
        return sum(chat.decode(done.ids) == answer(*pair) for done, pair in zip(found, TEST, strict=True))

    return asyncio.run(solve()) / len(TEST)


def warm_start(model: str, target: Path, goal: float = 0.25) -> None:
    """SFT until the goal is reached; writes the model."""
    rows = [
        {"messages": [{"role": "user", "content": ask(*p)}, {"role": "assistant", "content": answer(*p)}]}
        for p in TRAIN
    ]
    settings = recipe(
        {"type": "sft"},
        model,
        0,
        learner={"type": "local", "learning_rate": 1e-3, "warmup_steps": 20},
        batches={"demonstrations_per_step": 64},
    )
    with tempfile.TemporaryDirectory() as folder:
        session, assembly = session_of(settings, rows, folder, imitate=True)
        start = time.process_time()
        for number in range(1, 1001):
            asyncio.run(offline.step(session))
            if number % 20 == 0:
                share = held_out(assembly)
                print(f"warm start, step {number}: {share:.1%}, {time.process_time() - start:.1f} CPU-s", flush=True)
                if share >= goal:
                    break
    assembly.loaded.model.save_pretrained(target)
    assembly.loaded.tokenizer.save_pretrained(target)


def curve(model: str, seed: int, budget: float) -> Iterator[dict[str, Any]]:
    """One line per step of GRPO until the budget of CPU seconds is spent."""
    rows = [{"question": ask(*pair), "answer": answer(*pair)} for pair in TRAIN]
    settings = recipe(
        {"type": "grpo", "kl_coefficient": 0.0, "epsilon": 1e-4, "reduction": "token-mean"},
        model,
        seed,
        rewards=[{"type": "function", "function": exact, "inline": True}],
        rollouts={"prompts_per_step": 32, "group_size": 8, "max_new_tokens": 6},
        learner={"type": "local", "learning_rate": 3e-4},
    )
    with tempfile.TemporaryDirectory() as folder:
        session, assembly = session_of(settings, rows, folder, imitate=False)
        yield {"step": 0, "cpu": 0.0, "wall": 0.0, "test_acc": held_out(assembly)}
        cpu = wall = 0.0
        while cpu < budget:
            starts = time.process_time(), time.perf_counter()
            asyncio.run(sync.step(session))
            cpu += time.process_time() - starts[0]
            wall += time.perf_counter() - starts[1]
            step = session.state.step
            record = session.journal.run.metrics.read()[-1].metrics
            test = held_out(assembly) if step % 10 == 0 else None
            line = {"step": step, "cpu": round(cpu, 2), "wall": round(wall, 2), "test_acc": test}
            yield line | {"reward": record["reward/mean"], "entropy": record["entropy"]}


def main() -> None:
    """Warm start if there is none, then the curve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", type=Path, default=Path("runs/bench-models"))
    parser.add_argument("--warm", type=Path, help="warm-started model; made beside the models if it is not there")
    parser.add_argument("--budget", type=float, default=60.0, help="CPU seconds of GRPO")
    options = parser.parse_args()
    warm = options.warm or options.models / "warm"
    if not (warm / "config.json").exists():
        warm_start(str(build(options.models.resolve(), "char1m")), warm)
    options.target.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    with options.target.open("w") as file:
        for line in curve(str(warm.resolve()), options.seed, options.budget):
            lines.append(line)
            file.write(json.dumps(line) + "\n")
    for goal in GOALS:
        print(goal, reached(lines[1:], goal))


if __name__ == "__main__":
    main()
