"""The peer's side of the comparison: TRL's own trainer on a row of the table, stepped from outside.

Runs in the interpreter that has TRL; imports nothing of posttrain. A callback waits for a command before each step.
"""

from __future__ import annotations

import json
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, TrainerCallback

from bench.worker import Line, Stations, forget_peak, status
from bench.workloads import Row, answers, prompts, verdict

BEST = {"bf16": False, "gradient_checkpointing": False}
"""TRL's best settings on a CPU without fast bfloat16; its defaults are both True."""


def scored(completions: list[str], **_: Any) -> list[float]:
    """The reward of `bench.workloads` in TRL's style."""
    return [verdict(text) for text in completions]


def data(row: Row, tokenizer: Any) -> Dataset:
    """The row's data."""
    asked = prompts(tokenizer, row)
    if row.trainer == "grpo":
        return Dataset.from_list([{"prompt": text} for text in asked])
    given = answers(tokenizer, row)
    if row.trainer == "sft":
        return Dataset.from_list([{"prompt": p, "completion": a} for p, a in zip(asked, given, strict=True)])
    pairs = zip(asked, given[::2], given[1::2], strict=True)
    return Dataset.from_list([{"prompt": p, "chosen": good, "rejected": bad} for p, good, bad in pairs])


def settings(row: Row, folder: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """What every trainer is given."""
    rows = row.count * row.group
    micro = options.get("micro") or rows
    return {
        "output_dir": folder,
        "use_cpu": True,
        "max_steps": 10**6,
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": rows // micro,
        "learning_rate": 1e-4,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        **({} if options.get("defaults") else BEST),
    }


def build(row: Row, options: Mapping[str, Any], folder: str) -> Any:
    """TRL's trainer for the row."""
    path, given = options["model"], settings(row, folder, options)
    tokenizer = AutoTokenizer.from_pretrained(path)
    common = {"model": path, "train_dataset": data(row, tokenizer), "processing_class": tokenizer}
    if row.trainer == "grpo":
        forced = {} if row.free else {"generation_kwargs": {"min_new_tokens": row.completion}}
        config = trl.GRPOConfig(
            num_generations=row.group, max_completion_length=row.completion, temperature=1.0, **forced, **given
        )
        return trl.GRPOTrainer(reward_funcs=scored, args=config, **common)
    if row.trainer == "sft":
        return trl.SFTTrainer(args=trl.SFTConfig(max_length=4096, **given), **common)
    if row.trainer == "dpo":
        return trl.DPOTrainer(args=trl.DPOConfig(max_length=4096, **given), **common)
    network = AutoModelForSequenceClassification.from_pretrained(path, num_labels=1, dtype=torch.float32)
    network.config.pad_token_id = tokenizer.pad_token_id
    return trl.RewardTrainer(args=trl.RewardConfig(max_length=4096, **given), **{**common, "model": network})


class Peer:
    """A trainer on a row; its loop is driven by commands."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        torch.set_num_threads(1)
        self.row = Row(**options["row"])
        self._folder = tempfile.TemporaryDirectory()
        self.trainer = build(self.row, options, self._folder.name)
        self.tokens = 0
        self.stations = Stations()
        for owner, name, station in (
            (self.trainer, "_generate_single_turn", "generate"),
            (self.trainer, "compute_loss", "forward"),
            (self.trainer.accelerator, "backward", "backward"),
        ):
            if hasattr(owner, name):
                self.stations.wrap(owner, name, station)
        if self.row.trainer == "grpo":
            self._count_tokens()

    def _count_tokens(self) -> None:
        inner = self.trainer._generate_single_turn

        def counted(*arguments: Any, **options: Any) -> Any:
            found = inner(*arguments, **options)
            self.tokens += sum(map(len, found[0]))
            return found

        self.trainer._generate_single_turn = counted

    def gradient(self, path: str) -> dict[str, Any]:
        """Compute the gradient of the same batch and compare it with the one in the file."""
        trainer, model = self.trainer, self.trainer.model
        model.train()
        trainer.current_gradient_accumulation_steps = 1
        rows = json.loads(Path(path).with_suffix(".json").read_text())
        if self.row.trainer == "grpo":
            loss = trainer._compute_loss(model, rectangle(rows, trainer.processing_class.pad_token_id))
        else:
            batch = trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))
            counted = batch["labels"].ne(-100)[..., 1:].sum() if "labels" in batch else None
            loss = trainer.compute_loss(model, batch, num_items_in_batch=counted)
        loss.backward()
        mine = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        model.zero_grad(set_to_none=True)
        for sums in getattr(trainer, "_metrics", {}).values():
            sums.clear()
        return compare(mine, torch.load(path))


def rectangle(rows: list[dict[str, Any]], pad: int) -> dict[str, Any]:
    """TRL's batch of given completions: prompts padded on the left, completions on the right."""
    wide, long = max(len(r["prompt"]) for r in rows), max(len(r["completion"]) for r in rows)
    count = len(rows)
    batch: dict[str, Any] = {
        "prompt_ids": torch.full((count, wide), pad), "prompt_mask": torch.zeros(count, wide, dtype=torch.long),
        "completion_ids": torch.full((count, long), pad), "completion_mask": torch.zeros(count, long, dtype=torch.long),
        "advantages": torch.tensor([row["advantage"] for row in rows]),
        "num_items_in_batch": torch.tensor(sum(len(row["completion"]) for row in rows)),
    }  # fmt: skip
    for index, row in enumerate(rows):
        prompt, completion = len(row["prompt"]), len(row["completion"])
        batch["prompt_ids"][index, wide - prompt :] = torch.tensor(row["prompt"])
        batch["prompt_mask"][index, wide - prompt :] = 1
        batch["completion_ids"][index, :completion] = torch.tensor(row["completion"])
        batch["completion_mask"][index, :completion] = 1
    return batch


def compare(mine: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Relative distance of two gradients over all tensors of one shape and name; a score head's name may differ."""
    names = {bare(name): tensor for name, tensor in theirs.items()}
    apart = whole = 0.0
    missing = [name for name in mine if bare(name) not in names]
    for name, tensor in mine.items():
        whole += float(tensor.double().pow(2).sum())
        if bare(name) in names:
            apart += float((tensor.double() - names[bare(name)].double()).pow(2).sum())
    return {"relative": (apart / whole) ** 0.5, "norm": whole**0.5, "missing": missing}


def bare(name: str) -> str:
    """A parameter's name without what wraps the model; the weight of every score head is called score."""
    return "score" if name in ("score.weight", "critic.head.linear.weight") else name.removeprefix("model.")


class Waiter(TrainerCallback):
    """Holds the loop between steps and answers the driver."""

    def __init__(self, peer: Peer, line: Line, idle: float) -> None:
        self.peer, self.line, self.idle = peer, line, idle
        self._start = (0.0, 0.0)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Wait for the command to do a step; answer the others."""
        while True:
            command = self.line.next()
            if command is None:
                raise SystemExit(0)
            if command["do"] == "step":
                break
            if command["do"] == "gradient":
                self.line.answer(**self.peer.gradient(command["path"]))
                forget_peak()
            else:
                self.line.answer(idle=self.idle, peak=status("VmHWM"))
        self.peer.stations.take()
        self.peer.tokens = 0
        self._start = (time.process_time(), time.perf_counter())

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Tell what the step cost."""
        cpu, wall = time.process_time() - self._start[0], time.perf_counter() - self._start[1]
        found = self.peer.stations.take()
        found["rest"] = cpu - sum(found.values())
        self.line.answer(cpu=cpu, wall=wall, tokens=self.peer.tokens, stations=found)


def main() -> None:
    """Build the trainer, then let commands drive it."""
    warnings.filterwarnings("ignore")
    line = Line()
    options = line.next()
    assert options is not None
    peer = Peer(options)
    if peer.row.trainer == "reward":
        for weight in peer.trainer.model.parameters():
            if weight.ndim == 2 and len(weight) == 1:
                weight.data.copy_(torch.linspace(-0.02, 0.02, weight.shape[1]))
    versions = {"trl": trl.__version__, "torch": torch.__version__, "transformers": transformers.__version__}
    line.answer(**versions)
    forget_peak()
    peer.trainer.add_callback(Waiter(peer, line, status("VmRSS")))
    peer.trainer.train()


if __name__ == "__main__":
    main()
