"""One side of a comparison: an algorithm's name, a library's preset, a recipe file or a run directory.

All become the same thing: an algorithm with its options, and where there is a recipe, what else moves the gradient.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from posttrain.compare.notes import plain, read_note
from posttrain.compare.terms import algorithm_terms, idle_terms
from posttrain.config import Plug, Recipe, apply_override, read_recipe, validate
from posttrain.correction import Correction
from posttrain.errors import ConfigError
from posttrain.plugs import build_plug, plug_names, validated
from posttrain.presets.read import Preset, preset_names, read_preset
from posttrain.protocols import Algorithm

__all__ = ["Side", "resolve"]

UNCORRECTED = Correction()
"""Tokens count as if the learner had sampled them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """What is compared."""

    label: str
    """What the user called it."""
    kind: Literal["algorithm", "preset", "recipe", "run"]
    """Where it comes from."""
    plug: Plug
    """The algorithm and its options."""
    algorithm: Algorithm
    """The algorithm, built."""
    config: Any
    """Its validated options."""
    correction: Correction = UNCORRECTED
    """How the loss allows for tokens that another policy sampled."""
    recipe: Recipe | None = None
    """The recipe around it, if there is one."""
    preset: Preset | None = None
    """The library's preset, if it is one or names one."""

    def terms(self) -> dict[str, str]:
        """The algorithm's terms, then those of the recipe around it."""
        found = algorithm_terms(self.algorithm, self.config, read_note(self.plug.type))
        found |= {"correction": correction_words(self.correction)} if self.algorithm.needs.engine else {}
        return found | (recipe_terms(self.recipe, engine=self.algorithm.needs.engine) if self.recipe else {})

    def idle(self) -> set[str]:
        """Terms that only say an option's default."""
        return idle_terms(self.algorithm, self.config, read_note(self.plug.type))

    def constant(self, stored: float) -> float:
        """L of seq-mean-token-sum-norm: the recipe's max_new_tokens, or that of the stored batch."""
        return stored if self.recipe is None else float(self.recipe.rollouts.max_new_tokens)


def resolve(word: str, overrides: Sequence[str] = ()) -> Side:
    """What a word of the command line names; ``overrides`` change the algorithm's options (``clip_high=0.28``)
    or the correction (``correction.type=bypass``).

    Raises ConfigError or RecordError with the nearest name where there is no such thing.
    """
    path = Path(word).expanduser()
    if path.is_dir() and (path / "config.toml").is_file():
        return _of_recipe(word, "run", read_recipe(path / "config.toml"), overrides)
    if path.is_file():
        return _of_recipe(word, "recipe", read_recipe(path), overrides)
    if word in preset_names():
        preset = read_preset(word)
        return _side(word, "preset", Plug(type=preset.algorithm, preset=word), overrides)
    if ":" in word or word in plug_names("algorithms"):
        return _side(word, "algorithm", Plug(type=word), overrides)
    raise ConfigError(_nothing(word))


def _of_recipe(word: str, kind: Literal["recipe", "run"], recipe: Recipe, overrides: Sequence[str]) -> Side:
    return _side(word, kind, recipe.algorithm, overrides, recipe)


def _side(
    word: str,
    kind: Literal["algorithm", "preset", "recipe", "run"],
    plug: Plug,
    overrides: Sequence[str],
    recipe: Recipe | None = None,
) -> Side:
    named = plug.options.get("preset")
    preset = None if named is None else read_preset(str(named))
    table: dict[str, Any] = {"correction": correction_table(recipe, preset), **plug.options, "type": plug.type}
    for override in overrides:
        apply_override(table, override)
    correction = validate(Correction, table.pop("correction"), where=f"{word}: correction")
    plug = Plug.model_validate(table)
    return Side(
        label=f"{word} ({', '.join(overrides)})" if overrides else word,
        kind=kind,
        plug=plug,
        algorithm=build_plug("algorithms", plug),
        config=validated("algorithms", plug),
        correction=correction,
        recipe=recipe,
        preset=preset,
    )


def correction_table(recipe: Recipe | None, preset: Preset | None) -> dict[str, Any]:
    """The recipe's correction, or else what the preset's library does by default."""
    if recipe is not None:
        return recipe.correction.model_dump(exclude_unset=True)
    return dict(preset.correction) if preset is not None else {}


def correction_words(section: Correction) -> str:
    """A correction in words and formula, w = old / rollout."""
    if section.type == "none":
        return "none"
    words = ["ratio pi / rollout" if section.type == "bypass" else "w = old / rollout beside the ratio"]
    if section.weight == "truncate":
        words.append(f"min(w, {plain(section.cap)}) by {section.level}")
    if section.weight == "mask":
        words.append(f"w inside [{plain(section.floor)}, {plain(section.cap)}], else 0, by {section.level}")
    if section.geometric is not None:
        words.append(f"rollouts whose geometric mean of w leaves {list(section.geometric)} are dropped")
    if section.opsm is not None:
        words.append(f"rollouts with A < 0 and mean of -log w above {plain(section.opsm)} are dropped")
    return "; ".join((*words, f"{section.denominator} denominator"))


def recipe_terms(recipe: Recipe, *, engine: bool) -> dict[str, str]:
    """What else in a recipe moves the gradient."""
    batches, rollouts = recipe.batches, recipe.rollouts
    found = {
        "optimizer steps per batch": f"{batches.epochs} epochs x {batches.minibatches} minibatches",
        "learning rate": plain(recipe.learner.options.get("learning_rate", "the learner's default")),
    }
    if not engine:
        return found | {"rows per step": str(batches.demonstrations_per_step)}
    parts = " + ".join(f"{plain(part.weight)} {part.name or part.type}" for part in recipe.rewards)
    return found | {
        "batch": f"{rollouts.prompts_per_step} prompts x {rollouts.group_size} rollouts",
        "sampling": f"temperature {plain(rollouts.temperature)}, top_p {plain(rollouts.top_p)}",
        "longest completion": f"{rollouts.max_new_tokens} tokens",
        "reward": parts or "none",
    }


def _nothing(word: str) -> str:
    """What is said of a word that names nothing."""
    known: Mapping[str, str] = {
        **dict.fromkeys(plug_names("algorithms"), "algorithm"),
        **dict.fromkeys(preset_names(), "preset"),
    }
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    hint = f" Did you mean '{near[0]}'?" if near else f" Algorithms and presets: {', '.join(sorted(known))}."
    return f"'{word}' is no algorithm, preset, recipe file or run directory.{hint}"
