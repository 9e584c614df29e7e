"""Our side of the comparison: the real loop (`loops.sync.step` or `loops.offline.step`) on a row of the table."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import posttrain
from bench.worker import Line, Stations, forget_peak, status
from bench.workloads import Row, answers, prompts, verdict
from posttrain.assemble import Assembly, assemble, prepare
from posttrain.batches.build import build_samples, moving, weigh
from posttrain.config import Recipe, validate
from posttrain.launch import environment, make_session
from posttrain.loops import offline, sync
from posttrain.loops.session import Session, silent
from posttrain.loops.update import extended, refined, with_anchors
from posttrain.models.load import load_model
from posttrain.models.threads import ThreadPlan
from posttrain.records.run_directory import RunDirectory
from posttrain.tasks.source import task_set
from posttrain.types import Group, Rollout, Sample

NEVER = 10**6


def reward(rollout: Rollout) -> float:
    """The reward of `bench.workloads` on a rollout."""
    return verdict(rollout.text)


def recipe(row: Row, model: str, extra: Mapping[str, Mapping[str, Any]]) -> Recipe:
    """The row as a recipe: TRL's defaults of the algorithm, ours of everything else."""
    algorithm: dict[str, Any] = {"type": row.trainer if row.trainer != "reward" else "reward_model"}
    table: dict[str, dict[str, Any]] = {
        "run": {"name": row.name, "steps": NEVER},
        "model": {"path": model},
        "tasks": {"path": "<bench>"},
        "algorithm": algorithm,
        "learner": {"type": "local", "learning_rate": 1e-4},
        "batches": {"demonstrations_per_step": row.count},
    }
    if row.trainer == "grpo":
        algorithm |= {"kl_coefficient": 0.0, "epsilon": 1e-4, "reduction": "token-mean"}
        table["rollouts"] = {
            "prompts_per_step": row.count, "group_size": row.group, "max_new_tokens": row.completion
        }  # fmt: skip
        table["rewards"] = [{"type": "function", "function": reward, "inline": True}]  # type: ignore[assignment]
    for section, values in extra.items():
        table[section] = {**table.get(section, {}), **values}
    return validate(Recipe, table, where="bench")


def tasks(row: Row, tokenizer: Any) -> list[dict[str, Any]]:
    """The row's data as rows in memory."""
    asked = prompts(tokenizer, row)
    if row.trainer == "grpo":
        return [{"question": text} for text in asked]
    given = answers(tokenizer, row)
    if row.trainer == "sft":
        said = ({"role": "user", "content": text} for text in asked)
        return [{"messages": [m, {"role": "assistant", "content": a}]} for m, a in zip(said, given, strict=True)]
    pairs = zip(asked, given[::2], given[1::2], strict=True)
    return [{"prompt": text, "chosen": good, "rejected": bad} for text, good, bad in pairs]


class Ours:
    """A session on a row, stepped from outside."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        torch.set_num_threads(1)
        self.row = Row(**options["row"])
        wanted = recipe(self.row, options["model"], options.get("extra", {}))
        loaded = load_model(wanted.model, seed=0)
        rows = tasks(self.row, loaded.tokenizer)
        kind = {"dpo": "preferences", "reward": "rankings"}.get(self.row.trainer, "demonstrations")
        given = task_set(rows, for_imitation=self.row.trainer != "grpo", data=kind)
        assembly = assemble(prepare(wanted, tasks=given), loaded=loaded)
        self.assembly = self._unending(assembly) if self.row.trainer == "grpo" and not self.row.free else assembly
        self._folder = tempfile.TemporaryDirectory()
        plan = ThreadPlan(threads=1, reason="bench", environment={})
        run = RunDirectory.create(Path(self._folder.name) / "run", wanted, environment(wanted, plan, self.assembly))
        self.session = make_session(self.assembly, run, silent())
        self.stations = Stations()
        self._watch()

    def _unending(self, assembly: Assembly) -> Assembly:
        """Let nothing but the limit end a completion: every one gets its full length."""
        engine: Any = assembly.engine
        engine._stop_ids = frozenset()
        return assembly

    def _watch(self) -> None:
        learner: Any = self.assembly.learner
        engine: Any = self.assembly.engine
        for owner, name, station in (
            (engine, "_enter", "prefill"),
            (engine, "_decode", "decode"),
            (learner, "forward_backward", "train"),
            (learner, "logprobs", "anchor"),
            (learner, "step", "optimizer"),
            (torch.autograd, "backward", "backward"),
        ):
            self.stations.wrap(owner, name, station)

    def set_score_head(self) -> None:
        """Give a reward model the same first score head as the peer's."""
        critic: Any = self.assembly.learner._critic  # type: ignore[attr-defined]
        set_score_head(dict(critic.module.named_parameters()))

    def step(self) -> dict[str, Any]:
        """One step; CPU seconds, stations, and tokens sampled."""
        engine: Any = self.assembly.engine
        before, start = engine.stats()["tokens"], time.process_time()
        wall = time.perf_counter()
        self.stations.take()
        loop = sync.step if self.row.trainer == "grpo" else offline.step
        asyncio.run(loop(self.session))
        cpu = time.process_time() - start
        found = self.stations.take()
        found["forward"] = found.pop("train", 0.0) - found.get("backward", 0.0)
        found["rest"] = cpu - sum(found.values())
        return {
            "cpu": cpu,
            "wall": time.perf_counter() - wall,
            "tokens": engine.stats()["tokens"] - before,
            "stations": found,
        }

    def gradient(self, path: str) -> dict[str, Any]:
        """Write the gradient of one batch, and what the peer needs to compute it too; change no weight."""
        _, samples = self._batch(self.session)
        learner: Any = self.assembly.learner
        for microbatch in self.session.pack(moving(samples)):
            learner.forward_backward(microbatch, self.session.algorithm.loss)
        grads = {name: p.grad.clone() for name, p in learner.trained_tensors() if p.grad is not None}
        learner.clear_gradient()
        torch.save(grads, path)
        rows = [
            {
                "prompt": sample.ids[: sample.prompt_length].tolist(),
                "completion": sample.ids[sample.prompt_length :].tolist(),
                "advantage": float(sample.advantages[sample.loss_mask][0]),
            }
            for sample in samples
        ]
        Path(path).with_suffix(".json").write_text(json.dumps(rows))
        return {"norm": sum(float(g.double().pow(2).sum()) for g in grads.values()) ** 0.5, "rows": len(rows)}

    def given(self, lengths: Sequence[int]) -> list[Sample]:
        """Samples of these lengths with random ids, a prompt of 8 tokens and an advantage of one."""
        draw = np.random.default_rng(0)
        found = [
            Sample(
                ids=draw.integers(3, 100, length),
                loss_mask=np.arange(length) >= 8,
                prompt_length=8,
                group=group,
                rollout=0,
                advantages=np.ones(length),
                rollout_logprobs=np.full(length, np.nan),
                versions=np.full(length, -1),
                turns=np.full(length, -1),
            )
            for group, length in enumerate(lengths)
        ]
        return weigh(found, self.session.algorithm.needs.streams, constant=1.0)

    def _batch(self, session: Session) -> tuple[list[Group], list[Sample]]:
        """The first batch, weighed."""
        if self.row.trainer == "grpo":
            position = session.state.position
            intake = sync.open_intake(session)
            intake.add(*asyncio.run(sync.generate(session, sync.draw(session, intake))))
            groups, advantages = sync.judge(session, intake)
            session.state.position = position
        else:
            groups = offline.draw(session)
            advantages = session.algorithm.advantages(groups)
        samples = extended(session.algorithm, build_samples(groups, advantages))
        samples = with_anchors(samples, session.learner, session.algorithm, session.pack, anchored=False)
        samples = refined(session.algorithm, samples)
        return groups, weigh(samples, session.algorithm.needs.streams, constant=float(self.row.completion))


def set_score_head(parameters: Mapping[str, Any]) -> None:
    """Fill the one weight of shape [1, width] with the same numbers on both sides."""
    for weight in parameters.values():
        if weight.ndim == 2 and len(weight) == 1:
            weight.data.copy_(torch.linspace(-0.02, 0.02, weight.shape[1]))


def main() -> None:
    """Answer commands until there are no more."""
    line = Line()
    options = line.next()
    assert options is not None
    side = Ours(options)
    if side.row.trainer == "reward":
        side.set_score_head()
    line.answer(version=posttrain.__version__, torch=torch.__version__)
    forget_peak()
    idle = status("VmRSS")
    while (command := line.next()) is not None:
        if command["do"] == "step":
            line.answer(**side.step())
        elif command["do"] == "gradient":
            line.answer(**side.gradient(command["path"]))
            forget_peak()
        else:
            line.answer(idle=idle, peak=status("VmHWM"))


if __name__ == "__main__":
    main()
