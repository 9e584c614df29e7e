"""Recipe to objects: what can be validated before a model is loaded, and then everything that needs the model."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.batches.pack import pack, pack_auto, pack_whole_groups
from posttrain.checks.run import Subject
from posttrain.config import Critic as CriticSettings
from posttrain.config import Recipe, RewardPart
from posttrain.errors import ConfigError, DataError, did_you_mean
from posttrain.functional.reduce import MODES
from posttrain.models.load import Loaded, load_model
from posttrain.models.lora import add_lora
from posttrain.models.values import Critic, build_critic
from posttrain.plugs import build_plug, find_plug, validated
from posttrain.protocols import Algorithm, Engine, Env, Learner, Packer, Reward, WeightSync
from posttrain.refusals import refuse_unfit_sections, section_remarks
from posttrain.rollouts.rubric import Part, Rubric
from posttrain.tasks.chat import Chat
from posttrain.tasks.order import TaskOrder
from posttrain.tasks.overlong import drop_overlong
from posttrain.tasks.preferences import KINDS
from posttrain.tasks.source import TaskSet, load_tasks
from posttrain.tasks.steps import refuse_unlabelled
from posttrain.teachers import load_teachers, refuse_wrong_teachers, sorted_by_teacher
from posttrain.types import Needs, Task


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
    limit = recipe.rollouts.max_new_tokens * recipe.rollouts.max_turns
    algorithm: Algorithm = build_plug("algorithms", recipe.algorithm, seed=recipe.run.seed, token_limit=limit)
    for folder, plug in (("engines", recipe.engine), ("learners", recipe.learner), ("weight_sync", recipe.weight_sync)):
        validated(folder, plug)
    rubric = build_rubric(recipe.rewards) if recipe.rewards else None
    refuse_contradictions(recipe, algorithm, rubric)
    refuse_unfit_sections(recipe, algorithm, scored=rubric is not None)
    for_imitation = algorithm.needs.demonstrated
    seed = recipe.run.seed
    data = algorithm.needs.data if for_imitation else "demonstrations"
    training = load_tasks(recipe.tasks, seed=seed, for_imitation=for_imitation, data=data) if tasks is None else tasks
    if data in KINDS:
        refuse_lonely_tasks(training, recipe.algorithm.type, data)
    elif data == "steps":
        refuse_unlabelled(training)
    else:
        refuse_unfit_tasks(training, recipe.algorithm.type, for_imitation=for_imitation)
    refuse_wrong_teachers(recipe, algorithm.needs, training.tasks)
    if held_out is None and recipe.evaluation is not None:
        given = algorithm.needs.scores
        held_out = load_tasks(
            recipe.evaluation.tasks, seed=seed, for_imitation=given, data=data if given else "demonstrations"
        )
    return Prepared(
        recipe=recipe,
        algorithm=algorithm,
        rubric=rubric,
        make_env=functools.partial(build_plug, "envs", recipe.rollouts.env),
        tasks=training,
        held_out=held_out,
        notes=(
            *departures(recipe),
            *remarks(recipe, algorithm, training),
            *section_remarks(recipe, algorithm),
            *leaks(training, held_out),
        ),
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
    refuse_impossible_needs(name, algorithm)
    if batches.precompute_reference and (algorithm.needs.engine or not algorithm.needs.ref_logprobs):
        why = "samples its rows anew" if algorithm.needs.engine else "uses no reference"
        raise ConfigError(f"batches.precompute_reference = true has no use: algorithm '{name}' {why}. Remove it")
    source = "rollouts.prompts_per_step" if algorithm.needs.engine else "batches.demonstrations_per_step"
    groups = rollouts.prompts_per_step if algorithm.needs.engine else batches.demonstrations_per_step
    if groups < algorithm.needs.groups:
        raise ConfigError(
            f"algorithm '{name}' compares answers to different prompts: {source} = {groups}, it must be at least "
            f"{algorithm.needs.groups}"
        )
    if batches.minibatches > groups:
        raise ConfigError(
            f"batches.minibatches = {batches.minibatches} is more than {source} = {groups}: "
            "a group is never split over optimizer steps"
        )
    if algorithm.needs.engine:
        if rubric is None and algorithm.needs.rewarded:
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
    if recipe.evaluation is not None and not algorithm.needs.scores:
        if rubric is None:
            raise ConfigError("evaluation needs a reward to judge with: add a [[rewards]] part")
        beyond = [k for k in recipe.evaluation.k if k > recipe.evaluation.samples or k < 1]
        if beyond:
            raise ConfigError(
                f"evaluation.k = {beyond} cannot be estimated from evaluation.samples = {recipe.evaluation.samples}"
            )


def refuse_impossible_needs(name: str, algorithm: Algorithm) -> None:
    """Raise ConfigError for token weights that do not exist."""
    for part, mode in algorithm.needs.streams.items():
        if mode not in MODES:
            raise ConfigError(
                f"algorithm '{name}': no reduction '{mode}' for its {part} loss.{did_you_mean(mode, MODES)}"
            )


def refuse_unfit_tasks(tasks: TaskSet, name: str, *, for_imitation: bool) -> None:
    """Raise DataError for prompts where demonstrations are imitated, or the other way round."""
    for task in tasks:
        if (task.messages[-1].get("role") == "assistant") != for_imitation:
            have, want = ("a prompt", "a demonstration, which ends with an assistant message")
            if not for_imitation:
                have, want = ("a demonstration", "a prompt, which does not end with an assistant message")
            raise DataError(f"{tasks.name}: task '{task.id}' is {have}; algorithm '{name}' trains on {want}")


def refuse_lonely_tasks(tasks: TaskSet, name: str, data: str) -> None:
    """Raise DataError for tasks that bring no answers along where an algorithm compares given answers."""
    lonely = next((task for task in tasks if not task.candidates), None)
    if lonely is not None:
        raise DataError(f"{tasks.name}: task '{lonely.id}' has no candidates; algorithm '{name}' trains on {data}")


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


def leaks(training: TaskSet, held_out: TaskSet | None) -> list[str]:
    """One line that counts the held-out tasks whose prompt is trained on, if any."""
    if held_out is None:
        return []
    known = set(map(_prompt, training))
    shared = sum(_prompt(task) in known for task in held_out)
    if not shared:
        return []
    return [
        f"{shared} of {len(held_out)} held-out tasks are training tasks: the evaluation measures memory too "
        "(built-in generators hold problems out with split = 'test')"
    ]


def _prompt(task: Task) -> str:
    """What the policy is asked, without the answer a demonstration gives."""
    messages: Iterable[Any] = task.messages
    if task.messages[-1].get("role") == "assistant":
        messages = task.messages[:-1]
    return json.dumps([[message.get("role"), message.get("content")] for message in messages], default=str)


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
            max_failed_share=recipe.run.max_failed_share,
        )


def assemble(prepared: Prepared, *, loaded: Loaded | None = None) -> Assembly:
    """Load the model and build engine, learner and weight sync on it; ``loaded`` spares the loading."""
    recipe, needs = prepared.recipe, prepared.algorithm.needs
    loaded = load_model(recipe.model, seed=recipe.run.seed) if loaded is None else loaded
    chat = Chat(loaded.tokenizer, eos_ids=loaded.generation_eos_ids)
    temperature = recipe.rollouts.temperature if needs.engine else 1.0
    taught = load_teachers(recipe, needs, loaded, chat, temperature=temperature)
    window = loaded.window if taught is None else taught.window
    tasks, held_out = fit_tasks(prepared, chat, window)
    lora = recipe.model.lora
    reference = copy.deepcopy(loaded.model).requires_grad_(False) if needs.ref_logprobs and lora is None else None
    critic = make_critic(recipe, loaded, needs)
    context = {
        "model": loaded.model if lora is None else add_lora(loaded.model, lora, recipe.run.seed),
        "tokenizer": loaded.tokenizer,
        "chat": chat,
        "seed": recipe.run.seed,
        "temperature": temperature,
        "total_steps": recipe.run.steps * recipe.batches.epochs * recipe.batches.minibatches,
        "needs": needs,
        "reference_model": reference,
        "critic": critic,
        "teachers": None if taught is None else taught.teachers,
        "window": window,
        "stop_ids": chat.stop_ids,
    }
    learner = build_plug("learners", recipe.learner, **context)
    packer, layout_notes = choose_packer(recipe, learner, whole_groups=needs.whole_groups)
    return Assembly(
        prepared=prepared,
        loaded=loaded,
        chat=chat,
        engine=build_plug("engines", recipe.engine, **context),
        learner=learner,
        weight_sync=build_plug("weight_sync", recipe.weight_sync),
        pack=packer if taught is None else sorted_by_teacher(packer, taught.teachers),
        tasks=tasks,
        held_out=held_out,
        notes=(
            *prepared.notes,
            *(taught.notes if taught else ()),
            *layout_notes,
            *skips(tasks),
            *skips(held_out, "held-out tasks"),
        ),
    )


def make_critic(recipe: Recipe, loaded: Loaded, needs: Needs) -> Critic | None:
    """The critic of an algorithm that needs values; a score head trains at the rate of the model it sits on."""
    if not needs.values:
        return None
    rate = getattr(validated("learners", recipe.learner), "learning_rate", 1e-5)
    usual = CriticSettings(shared=True, learning_rate=rate) if needs.scores else CriticSettings()
    updates = recipe.batches.epochs * recipe.batches.minibatches
    return build_critic(recipe.critic or usual, loaded, model=recipe.model, seed=recipe.run.seed, updates=updates)


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
    room = window if prepared.algorithm.needs.scores else max(window - recipe.rollouts.max_new_tokens, 1)
    return tasks, drop_overlong(prepared.held_out, chat, room=room, policy=recipe.evaluation.tasks.overlong)


def choose_packer(recipe: Recipe, learner: Any, *, whole_groups: bool = False) -> tuple[Packer, list[str]]:
    """The microbatch layout the recipe asks for, or the cheapest one the learner's self-test allows."""
    budget, wanted = recipe.batches.tokens_per_microbatch, recipe.batches.layout
    allowed: frozenset[Any] = getattr(learner, "layouts", frozenset({"padded"}))
    notes = [f"layout: {learner.layout_reason}"] if getattr(learner, "layout_reason", "") else []
    if whole_groups:
        kept = allowed if wanted == "auto" else allowed & {wanted} or frozenset({"padded"})
        return functools.partial(pack_whole_groups, token_budget=budget, allowed=kept), notes
    if wanted == "auto":
        return functools.partial(pack_auto, token_budget=budget, allowed=allowed), notes
    if wanted not in allowed:
        notes.append(f"batches.layout = '{wanted}' is not exact on this model; padded rows are used instead")
        return functools.partial(pack, token_budget=budget, layout="padded"), notes
    return functools.partial(pack, token_budget=budget, layout=wanted), notes


def skips(tasks: TaskSet | None, what: str = "tasks") -> list[str]:
    """One line that counts the tasks left out, if any."""
    if tasks is None:
        return []
    counts = ", ".join(f"{count} {why}" for why, count in tasks.skipped.items() if count)
    return [f"{what} left out: {counts}"] if counts else []
