"""Recipe to objects: the only file that knows every plug. A plug is found by its file name.

``algorithm.type = "grpo"`` loads ``posttrain/algorithms/grpo.py``; ``my_module:MyThing`` loads a class of the
user's own. A plug's options are validated by its ``Config``; its constructor asks for context by parameter name.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pydantic

from posttrain.batches.pack import pack, pack_auto
from posttrain.checks.run import Subject
from posttrain.config import Plug, Recipe, RewardPart, validate
from posttrain.errors import ConfigError, did_you_mean
from posttrain.models.load import Loaded, load_model
from posttrain.models.lora import add_lora
from posttrain.protocols import Algorithm, Engine, Env, Learner, Packer, Reward, WeightSync
from posttrain.rollouts.rubric import Part, Rubric
from posttrain.tasks.chat import Chat
from posttrain.tasks.order import TaskOrder
from posttrain.tasks.overlong import drop_overlong
from posttrain.tasks.source import TaskSet, load_tasks

FOLDERS = ("algorithms", "rewards", "envs", "engines", "learners", "weight_sync")


def plug_names(folder: str) -> list[str]:
    """Names of the plugs that ship in a folder."""
    package = importlib.import_module(f"posttrain.{folder}")
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__))


def find_plug(folder: str, name: str) -> tuple[type[pydantic.BaseModel] | None, Callable[..., Any]]:
    """Return (Config, class) of a plug; raises ConfigError with the nearest name for an unknown one."""
    if ":" in name:
        return _own_plug(folder, name)
    if name not in plug_names(folder):
        hint = did_you_mean(name, plug_names(folder))
        raise ConfigError(f"{folder}: no plug called '{name}'.{hint} Your own is named module:Class.")
    module = importlib.import_module(f"posttrain.{folder}.{name}")
    (found,) = [item for item in module.__all__ if item != "Config"]
    return module.Config, getattr(module, found)


def _own_plug(folder: str, name: str) -> tuple[type[pydantic.BaseModel] | None, Callable[..., Any]]:
    path, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(path)
    except ImportError as error:
        raise ConfigError(f"{folder}: cannot import '{path}' of '{name}': {error}. Is it on PYTHONPATH?") from error
    found = getattr(module, attribute, None)
    if found is None:
        raise ConfigError(f"{folder}: module '{path}' has no '{attribute}'.{did_you_mean(attribute, vars(module))}")
    return getattr(found, "Config", getattr(module, "Config", None)), found


def validated(folder: str, plug: Plug) -> Any:
    """The plug's own Config built from the section's options, or the bare options where it has none."""
    config_class, _ = find_plug(folder, plug.type)
    if config_class is None:
        return plug.options
    return validate(config_class, plug.options, where=f"{folder} '{plug.type}'")


def build_plug(folder: str, plug: Plug, **context: Any) -> Any:
    """Construct a plug from its section; context reaches it by parameter name."""
    _, make = find_plug(folder, plug.type)
    wanted = inspect.signature(make).parameters
    return make(validated(folder, plug), **{key: value for key, value in context.items() if key in wanted})


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """Everything that can be validated before a model is loaded."""

    recipe: Recipe
    """The recipe."""
    algorithm: Algorithm
    """The algorithm, built."""
    rubric: Rubric | None
    """The reward; None for offline training without evaluation."""
    make_env: Callable[[], Env]
    """Makes one single-use environment."""
    tasks: TaskSet
    """Training tasks."""
    held_out: TaskSet | None
    """Evaluation tasks."""
    notes: tuple[str, ...]
    """Departures from the paper, and choices worth saying."""


def prepare(recipe: Recipe, *, tasks: TaskSet | None = None, held_out: TaskSet | None = None) -> Prepared:
    """Validate names, columns and combinations, read the tasks; no model is loaded. Raises ConfigError, DataError."""
    algorithm: Algorithm = build_plug("algorithms", recipe.algorithm)
    for folder, plug in (("engines", recipe.engine), ("learners", recipe.learner), ("weight_sync", recipe.weight_sync)):
        validated(folder, plug)
    rubric = build_rubric(recipe.rewards) if recipe.rewards else None
    refuse_contradictions(recipe, algorithm, rubric)
    for_imitation = not algorithm.needs.engine
    seed = recipe.run.seed
    training = load_tasks(recipe.tasks, seed=seed, for_imitation=for_imitation) if tasks is None else tasks
    if held_out is None and recipe.evaluation is not None:
        held_out = load_tasks(recipe.evaluation.tasks, seed=seed)
    return Prepared(
        recipe=recipe,
        algorithm=algorithm,
        rubric=rubric,
        make_env=functools.partial(build_plug, "envs", recipe.rollouts.env),
        tasks=training,
        held_out=held_out,
        notes=(*departures(recipe), *remarks(recipe, algorithm, training)),
    )


def build_rubric(parts: Sequence[RewardPart]) -> Rubric:
    """The reward's parts as one rubric, in the recipe's order."""
    built = []
    for part in parts:
        name = part.name or part.type
        reward: Reward = build_plug("rewards", part, name=name)
        built.append(
            Part(
                reward=reward,
                name=name,
                weight=part.weight,
                only_if=part.only_if,
                unparsable=part.unparsable,
                attempts=part.attempts,
            )
        )
    return Rubric(built)


def refuse_contradictions(recipe: Recipe, algorithm: Algorithm, rubric: Rubric | None) -> None:
    """Raise ConfigError for combinations that would train nothing, or something else than was meant."""
    rollouts, batches, name = recipe.rollouts, recipe.batches, recipe.algorithm.type
    if algorithm.needs.engine:
        if rubric is None:
            raise ConfigError(
                f"algorithm '{name}' learns from rewards, and the recipe has none: add a [[rewards]] part"
            )
        if rollouts.group_size < algorithm.needs.group_size:
            raise ConfigError(
                f"algorithm '{name}' compares rollouts of one group: rollouts.group_size is {rollouts.group_size}, "
                f"it must be at least {algorithm.needs.group_size}"
            )
        if rollouts.temperature == 0:
            raise ConfigError("rollouts.temperature = 0 gives equal rollouts and so no gradient: use 1.0")
        if batches.minibatches > rollouts.prompts_per_step:
            raise ConfigError(
                f"batches.minibatches = {batches.minibatches} is more than rollouts.prompts_per_step = "
                f"{rollouts.prompts_per_step}: a group is never split over optimizer steps"
            )
    if recipe.evaluation is not None:
        if rubric is None:
            raise ConfigError("evaluation needs a reward to judge with: add a [[rewards]] part")
        beyond = [k for k in recipe.evaluation.k if k > recipe.evaluation.samples or k < 1]
        if beyond:
            raise ConfigError(
                f"evaluation.k = {beyond} cannot be estimated from evaluation.samples = {recipe.evaluation.samples}"
            )


def departures(recipe: Recipe) -> list[str]:
    """Options of the algorithm that differ from its defaults, which are the paper's."""
    config_class, _ = find_plug("algorithms", recipe.algorithm.type)
    if config_class is None:
        return []
    chosen, paper = validated("algorithms", recipe.algorithm), config_class
    lines = []
    for key, field in paper.model_fields.items():
        value, default = getattr(chosen, key), field.get_default(call_default_factory=True)
        if value != default:
            lines.append(f"{recipe.algorithm.type}: {key} = {value} (the paper's preset: {default})")
    return lines


def remarks(recipe: Recipe, algorithm: Algorithm, tasks: TaskSet) -> list[str]:
    """Choices that are allowed and worth saying."""
    lines = []
    rollouts, batches = recipe.rollouts, recipe.batches
    if algorithm.needs.engine:
        if batches.epochs * batches.minibatches == 1:
            lines.append("one optimizer step per batch: the ratio is 1 and the clip never acts")
        if rollouts.top_p < 1 or rollouts.top_k or rollouts.min_p:
            lines.append(
                "top_p, top_k or min_p cut the sampled distribution; the learner's log-probabilities are of the full "
                "one, so logprob_gap is not 0 (train with all tokens kept to be exact)"
            )
        if rollouts.prompts_per_step > len(tasks):
            lines.append(
                f"{rollouts.prompts_per_step} prompts per step, {len(tasks)} tasks: tasks repeat within a step"
            )
    return lines


@dataclass(frozen=True, kw_only=True, slots=True)
class Assembly:
    """A run's objects, ready to loop over."""

    prepared: Prepared
    """What was validated before."""
    loaded: Loaded
    """Model and tokenizer as they were loaded."""
    chat: Chat
    """Messages to ids and back."""
    engine: Engine
    """Generates."""
    learner: Learner
    """Trains."""
    weight_sync: WeightSync
    """Carries."""
    pack: Packer
    """Samples to microbatches."""
    tasks: TaskSet
    """Training tasks that fit the window."""
    held_out: TaskSet | None
    """Evaluation tasks that fit the window."""
    notes: tuple[str, ...]
    """Notes of preparation and of loading."""

    def subject(self) -> Subject:
        """What the invariants are proved on."""
        recipe = self.prepared.recipe
        return Subject(
            algorithm=self.prepared.algorithm,
            learner=self.learner,
            engine=self.engine,
            chat=self.chat,
            pack=self.pack,
            layouts=getattr(self.learner, "layouts", frozenset({"padded"})),
            tasks=self.tasks,
            order=TaskOrder(len(self.tasks), recipe.run.seed),
            sampling=recipe.rollouts.sampling(),
            group_size=recipe.rollouts.group_size,
            prompts_per_step=recipe.rollouts.prompts_per_step,
            max_turns=recipe.rollouts.max_turns,
            rubric=self.prepared.rubric,
            make_env=self.prepared.make_env,
        )


def assemble(prepared: Prepared, *, loaded: Loaded | None = None) -> Assembly:
    """Load the model and build engine, learner and weight sync on it; ``loaded`` spares the loading."""
    recipe, needs = prepared.recipe, prepared.algorithm.needs
    loaded = load_model(recipe.model, seed=recipe.run.seed) if loaded is None else loaded
    chat = Chat(loaded.tokenizer)
    tasks, held_out = fit_tasks(prepared, chat, loaded.window)
    lora = recipe.model.lora
    reference = copy.deepcopy(loaded.model).requires_grad_(False) if needs.ref_logprobs and lora is None else None
    context = {
        "model": loaded.model if lora is None else add_lora(loaded.model, lora, recipe.run.seed),
        "tokenizer": loaded.tokenizer,
        "chat": chat,
        "seed": recipe.run.seed,
        "temperature": recipe.rollouts.temperature if needs.engine else 1.0,
        "total_steps": recipe.run.steps * recipe.batches.epochs * recipe.batches.minibatches,
        "needs": needs,
        "reference_model": reference,
        "window": loaded.window,
        "stop_ids": frozenset(chat.stop_ids) | frozenset(loaded.generation_eos_ids),
    }
    learner = build_plug("learners", recipe.learner, **context)
    packer, layout_notes = choose_packer(recipe, learner)
    return Assembly(
        prepared=prepared,
        loaded=loaded,
        chat=chat,
        engine=build_plug("engines", recipe.engine, **context),
        learner=learner,
        weight_sync=build_plug("weight_sync", recipe.weight_sync),
        pack=packer,
        tasks=tasks,
        held_out=held_out,
        notes=(*prepared.notes, *layout_notes, *skips(tasks)),
    )


def fit_tasks(prepared: Prepared, chat: Chat, window: int) -> tuple[TaskSet, TaskSet | None]:
    """Leave out, or refuse, tasks that leave no room in the model's window."""
    recipe = prepared.recipe
    room = window - recipe.rollouts.max_new_tokens
    if not prepared.algorithm.needs.engine:
        room = window
    elif room < 1:
        raise ConfigError(
            f"rollouts.max_new_tokens = {recipe.rollouts.max_new_tokens} leaves no room for a prompt in the model's "
            f"window of {window} tokens: lower it"
        )
    tasks = drop_overlong(prepared.tasks, chat, room=room, policy=recipe.tasks.overlong)
    if prepared.held_out is None or recipe.evaluation is None:
        return tasks, None
    room = max(window - recipe.rollouts.max_new_tokens, 1)
    return tasks, drop_overlong(prepared.held_out, chat, room=room, policy=recipe.evaluation.tasks.overlong)


def choose_packer(recipe: Recipe, learner: Any) -> tuple[Packer, list[str]]:
    """The microbatch layout the recipe asks for, or the cheapest one the learner's self-test allows."""
    budget, wanted = recipe.batches.tokens_per_microbatch, recipe.batches.layout
    allowed: frozenset[Any] = getattr(learner, "layouts", frozenset({"padded"}))
    notes = [f"layout: {learner.layout_reason}"] if getattr(learner, "layout_reason", "") else []
    if wanted == "auto":
        return functools.partial(pack_auto, token_budget=budget, allowed=allowed), notes
    if wanted not in allowed:
        notes.append(f"batches.layout = '{wanted}' is not exact on this model; padded rows are used instead")
        return functools.partial(pack, token_budget=budget, layout="padded"), notes
    return functools.partial(pack, token_budget=budget, layout=wanted), notes


def skips(tasks: TaskSet) -> list[str]:
    """One line that counts the tasks left out, if any."""
    counts = ", ".join(f"{count} {why}" for why, count in tasks.skipped.items() if count)
    return [f"tasks left out: {counts}"] if counts else []
