"""``posttrain demo``: the main job on embedded defaults. Warm start by SFT, GRPO, evaluation before and after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from posttrain.cli.screen import CONSOLE, Screen, show_evaluations
from posttrain.config import Recipe, validate
from posttrain.launch import Result, launch
from posttrain.records.run_directory import fresh_path

TOY: Mapping[str, Any] = {
    "tasks": {"generator": "addition", "options": {"split": "train"}},
    "held_out": {"generator": "addition", "options": {"split": "test"}, "limit": 200},
    "max_new_tokens": 6,
    "sft": {
        "steps": 300,
        "demonstrations_per_step": 64,
        "learning_rate": 1e-3,
        "warmup_steps": 10,
        "stop_at_loss": 0.45,
    },
    "grpo": {"steps": 120, "prompts_per_step": 32, "learning_rate": 3e-4},
    "lora": None,
}
"""Reversed addition (47+85= -> 231) on the offline toy model."""

PRETRAINED: Mapping[str, Any] = {
    "tasks": {"generator": "sort", "options": {"split": "train", "style": "words"}},
    "held_out": {"generator": "sort", "options": {"split": "test", "style": "words"}, "limit": 24},
    "max_new_tokens": 16,
    "sft": {
        "steps": 30,
        "demonstrations_per_step": 16,
        "learning_rate": 1e-4,
        "warmup_steps": 3,
        "stop_at_loss": 0.5,
    },
    "grpo": {"steps": 15, "prompts_per_step": 8, "learning_rate": 2e-4},
    "lora": {"rank": 16, "alpha": 32.0},
}
"""Sort three numbers with a pretrained model and LoRA."""


def run(
    model: Annotated[str, typer.Option(help="toy, smollm2, or the folder of a Hugging Face causal LM.")] = "toy",
    seed: Annotated[int, typer.Option(help="Seed of the whole demo.")] = 0,
    directory: Annotated[str, typer.Option(help="Where the two run directories go.")] = "runs",
    check: Annotated[bool, typer.Option(help="Prove the invariants before each part.")] = True,
) -> None:
    """Warm start, GRPO, evaluation; prints what it does and where everything is."""
    plan = TOY if model == "toy" else PRETRAINED
    CONSOLE.print(f"[bold]posttrain demo[/] on {model}: supervised warm start, then GRPO, then held-out evaluation")
    sft = start(sft_recipe(plan, model, seed, directory), "SFT", check=check)
    grpo = start(grpo_recipe(plan, str(sft.directory), seed, directory), "GRPO", check=check)
    report(sft, grpo)


def start(recipe: Recipe, title: str, *, check: bool) -> Result:
    """One part of the demo with its own display."""
    CONSOLE.rule(title, align="left")
    with Screen(title) as screen:
        return launch(recipe, progress=screen, check=check, on_check=screen.check)


def sft_recipe(plan: Mapping[str, Any], model: str, seed: int, directory: str) -> Recipe:
    """The warm start."""
    settings = plan["sft"]
    return _recipe(
        plan,
        model,
        run={
            "name": "demo-sft",
            "seed": seed,
            "steps": settings["steps"],
            "checkpoint_every": settings["steps"],
            "stop_at_loss": settings.get("stop_at_loss"),
        },
        directory=directory,
        algorithm={"type": "sft"},
        batches={"demonstrations_per_step": settings["demonstrations_per_step"]},
        learner=settings,
    )


def grpo_recipe(plan: Mapping[str, Any], warm: str, seed: int, directory: str) -> Recipe:
    """GRPO from the warm start, without a reference: the paper's formula with beta 0."""
    settings = plan["grpo"]
    return _recipe(
        plan,
        warm,
        run={"name": "demo-grpo", "seed": seed, "steps": settings["steps"], "checkpoint_every": settings["steps"]},
        directory=directory,
        algorithm={"type": "grpo", "kl_coefficient": 0.0},
        batches={},
        learner=settings,
    )


def _recipe(
    plan: Mapping[str, Any],
    model: str,
    *,
    run: dict[str, Any],
    directory: str,
    algorithm: dict[str, Any],
    batches: dict[str, Any],
    learner: Mapping[str, Any],
) -> Recipe:
    keys = ("learning_rate", "warmup_steps")
    table = {
        "run": run | {"directory": str(fresh_path(run["name"], directory)), "record_rollouts_every": 10},
        "model": {"path": model} | ({"lora": plan["lora"]} if plan["lora"] else {}),
        "tasks": plan["tasks"],
        "algorithm": algorithm,
        "rewards": [{"type": "exact"}],
        "rollouts": {
            "prompts_per_step": plan["grpo"]["prompts_per_step"],
            "group_size": 8,
            "max_new_tokens": plan["max_new_tokens"],
        },
        "batches": batches,
        "learner": {"type": "local"} | {key: learner[key] for key in keys if key in learner},
        "evaluation": {"tasks": plan["held_out"], "samples": 4, "before": algorithm["type"] == "sft"},
    }
    return validate(Recipe, table, where="posttrain demo")


def report(sft: Result, grpo: Result) -> None:
    """The closing table and where to look."""
    base, warm, final = sft.evaluations[0], sft.evaluations[-1], grpo.evaluations[-1]
    CONSOLE.rule("held-out tasks", align="left")
    show_evaluations([("untrained", base), ("after SFT", warm), ("after GRPO", final)])
    before, after = warm.pass_at[1].mean, final.pass_at[1].mean
    gain = f" ({after / before:.1f} times the warm start)" if before else ""
    CONSOLE.print(f"pass@1 went from {before:.1%} to {after:.1%} by GRPO{gain}")
    seconds = sum(record.seconds for result in (sft, grpo) for record in result.steps)
    CONSOLE.print(
        f"{seconds:.0f} s of training. Run directories: [bold]{sft.directory}[/] and [bold]{grpo.directory}[/]",
        soft_wrap=True,
    )
    CONSOLE.print(
        f"Look at metrics.jsonl and rollouts/*.parquet there; go on with: "
        f"posttrain train --resume {grpo.directory} --steps 200",
        soft_wrap=True,
    )
