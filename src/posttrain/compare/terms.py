"""The terms of an algorithm's formula in the field's words, for any algorithm: no list of algorithms stands here.

Three sources, the later wins: what its options and needs say by their names (an option called ``clip_high`` means the
same in every file), the terms of its note (see `posttrain.compare.notes`), and ``terms()`` of its class, which an
algorithm of your own may offer. An option that none of them speaks of appears under its own name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pydantic

from posttrain.compare.notes import Note, plain, term_fields, term_text
from posttrain.protocols import Algorithm
from posttrain.types import Needs

__all__ = ["ORDER", "REDUCTIONS", "algorithm_terms", "idle_terms"]

ORDER = (
    "trains on",
    "baseline",
    "scale",
    "epsilon",
    "credit",
    "critic",
    "ratio",
    "loss",
    "clip",
    "dual clip",
    "reduction",
    "KL to the reference",
    "entropy",
    "correction",
    "filter",
    "overlong",
)
"""The order in which terms are shown; others follow in their own."""

REDUCTIONS = {
    "token-mean": "token-mean: 1 / tokens of the batch, so a row weighs as much as it is long",
    "seq-mean-token-mean": "seq-mean-token-mean: 1 / (rows x tokens of the row), so every row weighs the same",
    "seq-mean-token-sum": "seq-mean-token-sum: 1 / rows per token",
    "seq-mean-token-sum-norm": "seq-mean-token-sum-norm: 1 / (rows x L), L the constant max_new_tokens",
    "token-sum": "token-sum: 1 per token, no mean at all",
    "rollout-mean": "rollout-mean: 1 / (rollouts x tokens of the rollout), over all its segments",
    "prompt-mean": "prompt-mean: 1 / (prompts x tokens of the prompt's rollouts)",
    "positive-token-mean": "positive-token-mean: 1 / tokens of right rows, on those only",
}
"""What each reduction of `posttrain.functional.reduce` does, in words."""

DATA = {
    "demonstrations": "demonstrations from disk",
    "preferences": "preference pairs from disk",
    "rankings": "rankings from disk",
    "labels": "answers labelled good or bad, from disk",
    "steps": "worked solutions with labelled steps, from disk",
}

Options = Mapping[str, Any]


def algorithm_terms(algorithm: Algorithm, config: Any, note: Note | None) -> dict[str, str]:
    """Term to words and formula, in the order of ORDER."""
    options = option_values(config)
    found, spoken = by_name(options)
    found |= by_needs(algorithm.needs)
    if note is not None:
        found |= {name: term_text(term, options) for name, term in note.terms.items()}
        spoken = spoken.union(*(term_fields(term) for term in note.terms.values()))
    own: Callable[[], Mapping[str, str]] = getattr(algorithm, "terms", dict)
    found |= own()
    if not hasattr(algorithm, "terms"):
        found |= unspoken(config, options, spoken)
    places = {name: place for place, name in enumerate(ORDER)}
    return dict(sorted(found.items(), key=lambda item: places.get(item[0], len(ORDER))))


def idle_terms(algorithm: Algorithm, config: Any, note: Note | None) -> set[str]:
    """Terms that are an option's own name at its default value: not worth a line beside an algorithm without it."""
    fields = getattr(type(config), "model_fields", {})
    options = option_values(config)
    spoken = by_name(options)[1].union(*(term_fields(term) for term in (note.terms.values() if note else ())))
    return {
        term_name(name)
        for name, field in fields.items()
        if name not in spoken and options[name] == field.get_default(call_default_factory=True)
    }


def term_name(option: str) -> str:
    """What an option is called as a term."""
    return option.replace("_", " ")


def option_values(config: Any) -> dict[str, Any]:
    """Options by name, as they stand in the Config (or in the bare section of a plug without one)."""
    if isinstance(config, pydantic.BaseModel):
        return {name: getattr(config, name) for name in type(config).model_fields}
    return dict(config or {})


def by_name(options: Options) -> tuple[dict[str, str], set[str]]:
    """Terms that option names give away, and the options they speak of."""
    found: dict[str, str] = {}
    spoken: set[str] = set()
    for names, say in VOCABULARY:
        if set(names) <= options.keys():
            found |= say(options)
            spoken |= set(names)
    return found, spoken | ({"ddof", "epsilon", "kl_place", "reduction"} & options.keys())


def by_needs(needs: Needs) -> dict[str, str]:
    """Terms that needs give away: data, reductions, filter, critic."""
    found = {"trains on": "rollouts sampled now by the policy itself" if needs.engine else DATA[needs.data]}
    main = needs.streams.get("policy", next(iter(needs.streams.values()), None))
    if main is not None:
        found["reduction"] = REDUCTIONS.get(main, main)
    for part, mode in needs.streams.items():
        if mode != main:
            found[f"reduction of the {part} loss"] = REDUCTIONS.get(mode, mode)
    if needs.refill:
        found["filter"] = f"groups of equal rewards are dropped and replaced, at most {needs.refill} times per batch"
    if needs.values and not needs.scores:
        found["critic"] = "a critic predicts returns"
    return found


def unspoken(config: Any, options: Options, spoken: set[str]) -> dict[str, str]:
    """Every other option under its own name, with the sentence that stands under it."""
    fields = getattr(type(config), "model_fields", {})
    sentences = {name: (field.description or "").split("\n")[0] for name, field in fields.items()}
    return {
        term_name(name): f"{plain(value)}: {sentences.get(name, '')}".rstrip(": ")
        for name, value in options.items()
        if name not in spoken
    }


def _scale(options: Options) -> dict[str, str]:
    if options["scale"] in ("none", None, False):
        return {"scale": "none: the centred reward as it is", "epsilon": "none"}
    what = str(options["scale"]).replace("_std", "").replace("_", " ")
    ddof = options.get("ddof")
    words = f"divided by the {what}'s standard deviation" + ("" if ddof is None else f", n - {ddof} in the denominator")
    return {"scale": words, "epsilon": f"{plain(options.get('epsilon', 0.0))}, added to the standard deviation"}


def _clip(options: Options) -> dict[str, str]:
    low, high = plain(options["clip_low"]), plain(options["clip_high"])
    return {"clip": f"ratio held in [1 - {low}, 1 + {high}]"}


def _dual_clip(options: Options) -> dict[str, str]:
    bound = options["dual_clip"]
    return {"dual clip": "none" if bound is None else f"with A < 0 the loss is at most {plain(bound)} |A|"}


def _kl(options: Options) -> dict[str, str]:
    if not options["kl_coefficient"]:
        return {"KL to the reference": "none"}
    place = "in the reward" if options.get("kl_place", "loss") == "reward" else "in the loss"
    return {"KL to the reference": f"{plain(options['kl_coefficient'])} x {options['kl_estimator']}, {place}"}


def _entropy(options: Options) -> dict[str, str]:
    bonus = options["entropy_coefficient"]
    return {"entropy": f"bonus {plain(bonus)} x entropy" if bonus else "none"}


def _drop(options: Options) -> dict[str, str]:
    return {"filter": "groups of equal rewards are dropped" if options["drop_degenerate"] else "none"}


VOCABULARY: tuple[tuple[tuple[str, ...], Callable[[Options], dict[str, str]]], ...] = (
    (("scale",), _scale),
    (("clip_low", "clip_high"), _clip),
    (("dual_clip",), _dual_clip),
    (("kl_coefficient", "kl_estimator"), _kl),
    (("entropy_coefficient",), _entropy),
    (("drop_degenerate",), _drop),
)
"""Option names that mean the same in every algorithm, and what they say."""
