"""Makes the small stored batch that `posttrain diff` ships: real rollouts of the toy model, no number is invented.

    python bench/make_stored_batch.py src/posttrain/compare/stored

Warm start by SFT on three toy tasks, 20 batches of GRPO (the reference is the warm start), then one batch of eight
groups is sampled and trained on for four epochs of two minibatches: what the policy says before and after these
eight optimizer steps gives `old_logprobs` and `logprobs`. The teacher is the same policy after 60 further batches.
Values are a linear head on the policy's hidden states, fitted to the rewards of earlier batches.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from posttrain.assemble import Assembly, assemble, prepare
from posttrain.batches.build import build_samples, scatter
from posttrain.batches.pack import pack
from posttrain.config import Batches, Recipe, validate
from posttrain.loops.update import own_logprobs, update
from posttrain.models.load import Loaded, load_model
from posttrain.models.rows import tensors
from posttrain.models.scoring import body, causal_model
from posttrain.records.rollout_store import RolloutStore
from posttrain.rollouts.group import Roller, roll_batch
from posttrain.types import Ending, Group, Rollout, Sample

TASKS = {"generator": "mix", "options": {"names": ["addition", "reverse", "sort"], "split": "train"}}
LIMIT = 12
SEED = 7


def recipe(kind: str, **sections: Any) -> Recipe:
    """One part of the run."""
    table = {
        "run": {"seed": SEED, "steps": 400, "threads": 1},
        "model": {"path": "toy"},
        "tasks": TASKS,
        "algorithm": {"type": kind},
        "rewards": [
            {"type": "exact"},
            {"name": "brief", "type": "length", "start": 4, "end": 12, "weight": 0.1, "only_if": "exact"},
        ],
        "rollouts": {"prompts_per_step": 16, "group_size": 8, "max_new_tokens": LIMIT},
        "batches": {"demonstrations_per_step": 64},
        "learner": {"type": "local", "learning_rate": 1e-3 if kind == "sft" else 3e-4},
    }
    return validate(Recipe, table | sections, where="stored batch")


def imitate(loaded: Loaded, steps: int) -> None:
    """The warm start."""
    made = assemble(prepare(recipe("sft")), loaded=loaded)
    from_tasks = made.tasks
    for step in range(steps):
        groups = [demonstration(made, (step * 64 + n) % len(from_tasks)) for n in range(64)]
        samples = build_samples(groups, made.prepared.algorithm.advantages(groups))
        found = update(
            samples,
            learner=made.learner,
            algorithm=made.prepared.algorithm,
            pack=made.pack,
            batches=made.prepared.recipe.batches,
            constant=1.0,
            seed=(SEED, step),
        )
        if step % 50 == 0:
            print("sft", step, round(found.stats["loss"].result, 3), flush=True)


def demonstration(made: Assembly, index: int) -> Group:
    """One demonstration as a group."""
    task = made.tasks[index]
    rollout = Rollout(
        task=task,
        index=0,
        seed=0,
        segments=made.chat.demonstration_segments(task.messages),
        messages=task.messages,
        text="",
        ending=Ending.STOP,
    )
    return Group(position=index, task=task, rollouts=(rollout,))


def sample(made: Assembly, positions: Sequence[int], size: int = 8, temperature: float = 1.0) -> list[Group]:
    """Roll out the tasks at these positions."""
    roller = Roller(
        env_factory=made.prepared.make_env,
        engine=made.engine,
        chat=made.chat,
        sampling=made.prepared.recipe.rollouts.sampling(temperature),
        rubric=made.prepared.rubric,
        max_turns=1,
        on_rollout=lambda _: None,
    )
    drawn = [(p, made.tasks[p % len(made.tasks)]) for p in positions]
    groups, _ = asyncio.run(roll_batch(drawn, group_size=size, seed_of=lambda p, i: 1000 * p + i, roller=roller))
    return list(groups)


def learn(made: Assembly, groups: Sequence[Group], step: int, batches: Batches) -> list[Sample]:
    """One batch of GRPO; returns its samples."""
    samples = build_samples(groups, made.prepared.algorithm.advantages(groups))
    update(
        samples,
        learner=made.learner,
        algorithm=made.prepared.algorithm,
        pack=made.pack,
        batches=batches,
        constant=float(LIMIT),
        seed=(SEED, step),
    )
    asyncio.run(made.weight_sync.carry(made.learner, [made.engine], made.learner.version))
    return samples


def hidden_states(model: Any, samples: Sequence[Sample]) -> np.ndarray:
    """The policy's hidden state before each trained token, [N, width]."""
    (microbatch,) = pack(samples, token_budget=2**40, layout="padded")
    assert list(microbatch.samples) == list(samples) or len(microbatch.samples) == len(samples)
    rows = tensors(microbatch, "cpu")
    with torch.no_grad():
        out = body(causal_model(model))(input_ids=rows.ids, position_ids=rows.positions, use_cache=False)
    flat = out.last_hidden_state.flatten(0, 1).index_select(0, rows.sources).double().numpy()
    found = {
        id(s): h
        for s, h in zip(
            microbatch.samples,
            np.split(flat, np.cumsum([int(s.loss_mask.sum()) for s in microbatch.samples])[:-1]),
            strict=True,
        )
    }
    return np.concatenate([found[id(s)] for s in samples])


def fitted_head(states: np.ndarray, returns: np.ndarray, ridge: float = 1.0) -> np.ndarray:
    """Ridge regression with a constant."""
    x = np.concatenate([states, np.ones((len(states), 1))], axis=1)
    return np.linalg.solve(x.T @ x + ridge * np.eye(x.shape[1]), x.T @ returns)


def main(folder: Path) -> None:
    """Train, sample, train, write."""
    torch.set_num_threads(1)
    loaded = load_model(recipe("sft").model, seed=SEED)
    imitate(loaded, 70)
    made = assemble(prepare(recipe("grpo")), loaded=loaded)
    once, more = Batches(), Batches(epochs=4, minibatches=2)
    states, returns = [], []
    for step in range(20):
        groups = sample(made, range(16 * step, 16 * step + 16))
        samples = learn(made, groups, step, once)
        if step >= 10:
            states.append(hidden_states(loaded.model, samples))
            returns.append(np.concatenate([np.full(int(s.loss_mask.sum()), s.reward) for s in samples]))
        if step % 5 == 0:
            print("grpo", step, np.mean([r.reward for g in groups for r in g.rollouts]), flush=True)
    head = fitted_head(np.concatenate(states), np.concatenate(returns))
    groups = choose(sample(made, range(2000, 2032)))
    greedy = sample(made, [group.position for group in groups], 1, 0.0)
    samples = build_samples(groups, made.prepared.algorithm.advantages(groups))
    columns: dict[str, list[np.ndarray]] = {}
    columns["old_logprobs"] = own_logprobs(samples, made.learner, made.pack)
    columns["ref_logprobs"] = own_logprobs(samples, made.learner, made.pack, reference=True)
    old_states = hidden_states(loaded.model, samples)
    old_values = np.concatenate([old_states, np.ones((len(old_states), 1))], axis=1) @ head
    columns["old_values"] = scatter(samples, old_values)
    learn(made, groups, 1000, more)
    columns["logprobs"], columns["entropy"] = both(made, samples)
    new_states = hidden_states(loaded.model, samples)
    columns["values"] = scatter(samples, np.concatenate([new_states, np.ones((len(new_states), 1))], axis=1) @ head)
    for step in range(60):
        learn(made, sample(made, range(4000 + 16 * step, 4016 + 16 * step)), 2000 + step, once)
    columns["teacher_logprobs"] = own_logprobs(samples, made.learner, made.pack)
    write(folder, groups, greedy, samples, columns, loaded.tokenizer)


def choose(groups: Sequence[Group]) -> list[Group]:
    """Eight groups: the first that is all equal, and the first seven whose rewards differ."""
    mixed = [g for g in groups if len({round(r, 6) for r in g.rewards}) > 1]
    equal = [g for g in groups if len({round(r, 6) for r in g.rewards}) == 1]
    print("mixed", len(mixed), "equal", len(equal))
    return [*mixed[:7], *equal[:1]]


def both(made: Assembly, samples: Sequence[Sample]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Log-probability and entropy of the policy, one array per sample."""
    found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for microbatch in made.pack(samples):
        logprobs, entropy = made.learner.logprobs(microbatch)
        rows = zip(
            microbatch.samples, scatter(microbatch.samples, logprobs), scatter(microbatch.samples, entropy), strict=True
        )
        for sample_, one, other in rows:
            found[id(sample_)] = one, other
    return [found[id(s)][0] for s in samples], [found[id(s)][1] for s in samples]


def write(
    folder: Path,
    groups: Sequence[Group],
    greedy: Sequence[Group],
    samples: Sequence[Sample],
    columns: Any,
    tokenizer: Any,
) -> None:
    """The rollouts and the greedy ones in a run directory's own format, and one row per trained token beside them."""
    store = RolloutStore(folder)
    store.write(1, groups, ())
    store.write(2, greedy, ())
    rows = []
    for place, sample_ in enumerate(samples):
        for token in np.flatnonzero(sample_.loss_mask):
            rows.append(
                {
                    "position": sample_.group,
                    "index": sample_.rollout,
                    "place": int(token),
                    "piece": tokenizer.decode([int(sample_.ids[token])]),
                    **{name: float(values[place][token]) for name, values in columns.items()},
                }
            )
    pq.write_table(pa.Table.from_pylist(rows), folder / "tokens.parquet", compression="zstd")
    rewards = [r.reward for g in groups for r in g.rollouts]
    print(
        "tokens", len(rows), "mean reward", np.mean(rewards), "bytes", sum(f.stat().st_size for f in folder.iterdir())
    )
    gap = np.array([row["logprobs"] - row["old_logprobs"] for row in rows])
    print(
        "ratio outside .2:",
        np.mean(np.abs(np.exp(gap) - 1) > 0.2),
        "kl ref k3",
        np.mean([np.exp(r["ref_logprobs"] - r["logprobs"]) - 1 - (r["ref_logprobs"] - r["logprobs"]) for r in rows]),
    )
    print("lengths", np.unique([int(s.loss_mask.sum()) for s in samples], return_counts=True))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
