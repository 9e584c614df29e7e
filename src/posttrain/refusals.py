"""Sections of a recipe that contradict each other or the algorithm, found before a model is loaded."""

from __future__ import annotations

from posttrain.config import Recipe
from posttrain.errors import ConfigError
from posttrain.protocols import Algorithm


def refuse_unfit_sections(recipe: Recipe, algorithm: Algorithm, *, scored: bool) -> None:
    """Raise ConfigError for a correction, curriculum or needs that this run has no use for; ``scored``: by rewards."""
    refuse_unfit_critic(recipe, algorithm)
    name, needs = recipe.algorithm.type, algorithm.needs
    always = needs.engine and needs.on_policy >= 1
    if recipe.correction.type != "none" and not always:
        raise ConfigError(
            f"correction.type = '{recipe.correction.type}' compares with the engine's log-probabilities, and "
            f"algorithm '{name}' also trains on text that no engine sampled: set correction.type = 'none'"
        )
    if recipe.tasks.curriculum is not None and not (always and scored):
        raise ConfigError(
            f"tasks.curriculum goes by the pass rate of rollouts, and algorithm '{name}' has none here: leave it out"
        )
    if needs.greedy and not scored:
        raise ConfigError(f"algorithm '{name}' compares with the reward of a greedy rollout: add a [[rewards]] part")
    if needs.greedy and needs.refill:
        raise ConfigError(
            f"algorithm '{name}' needs greedy rollouts and refills batches; a group that waits for the next batch "
            "would be compared with the greedy rollout of other weights"
        )


def refuse_unfit_critic(recipe: Recipe, algorithm: Algorithm) -> None:
    """Raise ConfigError for a [critic] section that nobody reads, or that is no score head where one is trained."""
    name, critic = recipe.algorithm.type, recipe.critic
    if critic is None:
        return
    if not algorithm.needs.values:
        raise ConfigError(f"algorithm '{name}' needs no values, so the [critic] section would train nothing: remove it")
    if algorithm.needs.scores and not critic.shared:
        raise ConfigError(
            f"algorithm '{name}' trains a score head on the model itself: write shared = true in [critic], "
            "or leave the section out"
        )


def section_remarks(recipe: Recipe, algorithm: Algorithm) -> list[str]:
    """Choices of these sections that are allowed and worth saying."""
    lines = []
    needs, rollouts, corrected = algorithm.needs, recipe.rollouts, recipe.correction.type != "none"
    if needs.refill and rollouts.surplus_staleness and not corrected:
        lines.append(
            f"surplus groups of dynamic sampling train up to {rollouts.surplus_staleness} batches late, on older "
            "weights' tokens; [correction] allows for that, rollouts.surplus_staleness = 0 drops them"
        )
    if corrected and (rollouts.top_p < 1 or rollouts.top_k or rollouts.min_p):
        lines.append(
            "correction compares the full distribution with a cut one (top_p, top_k or min_p): the weights are not 1 "
            "where nothing is off"
        )
    return lines
