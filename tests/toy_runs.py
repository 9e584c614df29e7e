"""A toy model of a few thousand weights and short recipes, for tests of whole runs and what they are made of."""

import dataclasses

import torch

from posttrain import config
from posttrain.assemble import assemble, prepare
from posttrain.models.load import Loaded
from posttrain.models.tiny import build_toy
from posttrain.tasks.source import task_set

SIZES = {"hidden": 32, "intermediate": 48, "layers": 1, "heads": 4, "kv_heads": 2, "window": 96}
ROWS = [{"question": f"{n}+1=", "answer": str(n + 1)} for n in range(6)]


def build_loaded(*, seed=0, dtype=torch.float32, **sizes):
    """A tiny toy as if the recipe had named it."""
    model, tokenizer = build_toy(seed=seed, dtype=dtype, **(SIZES | sizes))
    return Loaded(
        model=model,
        tokenizer=tokenizer,
        name="tiny",
        revision_digest="0" * 16,
        window=(SIZES | sizes)["window"],
        generation_eos_ids=(tokenizer.eos_token_id,),
    )


def length_reward(rollout):
    """A reward that differs between rollouts: sampled tokens."""
    return float(rollout.sampled_count) + sum(map(ord, rollout.text)) / 1000


def table(kind="grpo", /, **sections):
    """A recipe's table; each section given replaces the keys it names."""
    usual = {
        "run": {"name": "tiny", "steps": 2, "threads": 1},
        "model": {"path": "toy"},
        "tasks": {"generator": "addition", "options": {"size": 8}},
        "algorithm": {"type": kind},
        "rewards": [{"type": "function", "name": "length", "function": length_reward, "inline": True}],
        "rollouts": {"prompts_per_step": 2, "group_size": 4, "max_new_tokens": 6},
        "batches": {"demonstrations_per_step": 3},
        "learner": {"type": "local", "learning_rate": 1e-2},
    }
    for name, section in sections.items():
        merged = isinstance(section, dict) and isinstance(usual.get(name), dict)
        usual[name] = usual[name] | section if merged else section
    return {name: section for name, section in usual.items() if section is not None}


def build_recipe(kind="grpo", /, **sections):
    """The same, validated."""
    return config.validate(config.Recipe, table(kind, **sections), where="test")


def build_assembly(kind="grpo", /, *, loaded=None, **sections):
    """A run's objects on a tiny model."""
    recipe = build_recipe(kind, **sections)
    return assemble(prepare(recipe), loaded=loaded or build_loaded())


def rows_in_memory(count=6):
    """Prompts with answers as a task set."""
    return task_set(ROWS[:count])


class Listener:
    """A Progress that remembers what it was told."""

    def __init__(self):
        self.told = []

    def __getattr__(self, name):
        return lambda *arguments: self.told.append((name, *arguments))

    def of(self, name):
        return [arguments for kind, *arguments in self.told if kind == name]


def weights(model):
    """A copy of every parameter."""
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters()}


def same(one, other):
    """Whether two copies are equal bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def changed(subject, **parts):
    """A frozen noun with parts replaced."""
    return dataclasses.replace(subject, **parts)
