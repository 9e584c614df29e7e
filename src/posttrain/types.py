"""The nouns: what a task, a completion, a rollout, a group, a sample and a batch are.

Everything that flows through posttrain is one of these, in this order:
task -> completion -> turn -> segment -> rollout -> group -> sample -> microbatch -> token batch -> step.
All are frozen; a changed one is made with ``dataclasses.replace``. This file loads no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from posttrain.needs import Needs as Needs
from posttrain.stats import Stat as Stat
from posttrain.stats import StepStats as StepStats
from posttrain.stats import merge_stats as merge_stats

if TYPE_CHECKING:
    import torch

Message = Mapping[str, Any]
"""One chat message: ``role`` and ``content``, optionally ``tool_calls``, ``name``, ``tool_call_id``."""

Layout = Literal["padded", "packed", "shared"]
"""How samples lie in a microbatch: right-padded rows, one packed row, or one row with shared prompts."""


class Ending(StrEnum):
    """Why a completion ended."""

    STOP = "stop"
    """The model sampled a stop token; that token is part of the completion and is trained."""
    STOP_STRING = "stop_string"
    """The text reached one of the sampling's stop strings."""
    LENGTH = "length"
    """The token limit or the model's window cut the completion off: it is truncated."""
    ABORTED = "aborted"
    """The engine was told to stop before the completion was finished."""


class Outcome(StrEnum):
    """What became of one attempt to score a rollout."""

    SCORED = "scored"
    """The answer was read and has a value."""
    UNPARSABLE = "unparsable"
    """No answer could be read; the rule's value for that case stands."""
    TIMEOUT = "timeout"
    """The scorer did not finish in time: infrastructure, never a score."""
    FAILED = "failed"
    """The scorer raised or returned nonsense: infrastructure, never a score."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A given answer to a task: one side of a preference pair, a place in a ranking, or a labelled answer."""

    messages: tuple[Message, ...]
    """What follows the prompt, ending with an assistant message; only its assistant messages train."""
    reward: float
    """How good it is; only the order inside a task counts, or for labels 1 (good) and 0 (bad)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One thing to do: the conversation so far and what a verifier needs to judge the answer."""

    id: str
    """Unique within its source, stable over runs."""
    messages: tuple[Message, ...]
    """The prompt as chat messages; for a demonstration it ends with assistant messages."""
    answer: str | None = None
    """The reference answer, if there is one."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Every other column of the source row, passed to reward functions by name."""
    source: str = ""
    """Name of the source the task came from."""
    candidates: tuple[Candidate, ...] = ()
    """Given answers with their rewards, best first; empty unless preferences, rankings or labels are read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How tokens are drawn."""

    max_new_tokens: int
    """The most tokens one completion may have."""
    temperature: float = 1.0
    """Divides the logits before everything else; 0 means greedy."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches this; 1 keeps all."""
    top_k: int = 0
    """Keep the k most probable tokens; 0 keeps all."""
    min_p: float = 0.0
    """Drop tokens below this share of the most probable token's probability; 0 keeps all."""
    stop: tuple[str, ...] = ()
    """Strings that end a completion."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """What an engine sampled for one prompt."""

    ids: tuple[int, ...]
    """Sampled token ids, the stop token included."""
    rollout_logprobs: tuple[float, ...]
    """Natural-log probability of each id under the distribution really sampled from."""
    versions: tuple[int, ...]
    """Version of the weights that sampled each id."""
    ending: Ending
    """Why it ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """One token row of a rollout: context and sampled tokens as the model saw them, never re-tokenised."""

    ids: tuple[int, ...]
    """All token ids of the row."""
    loss_mask: tuple[bool, ...]
    """True exactly where the policy sampled the token (for a demonstration: where it is to be imitated)."""
    rollout_logprobs: tuple[float, ...]
    """Per token; NaN where the policy did not sample."""
    versions: tuple[int, ...]
    """Per token; -1 where the policy did not sample."""
    turns: tuple[int, ...]
    """Per token; index of the turn that sampled it, -1 elsewhere."""
    prompt_length: int
    """Number of leading context tokens before the first turn, shared by the rollouts of a group."""
    images: Mapping[str, Any] = field(default_factory=dict)
    """What the processor made of the row's images, by the model's argument name; empty for text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """One source's raw verdict on one rollout."""

    name: str
    """Name of the reward part."""
    value: float | None
    """The number, finite; None if the outcome is not a score or the part does not apply."""
    outcome: Outcome
    """Whether it is a score at all."""
    detail: str = ""
    """What was read, or what went wrong, in a few words."""
    steps: tuple[tuple[int, float], ...] = ()
    """Process rewards: (index among the rollout's sampled tokens of the step's last one, number), in order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """All turns of one policy with one environment: what a reward scores."""

    task: Task
    """The task that was attempted."""
    index: int
    """Place in its group, from 0."""
    seed: int
    """Seed of every draw in this rollout."""
    segments: tuple[Segment, ...]
    """Token rows; one unless history was rewritten."""
    messages: tuple[Message, ...]
    """The whole conversation, prompt included."""
    text: str
    """Text of the last completion, special tokens removed."""
    ending: Ending
    """How the last completion ended."""
    turn_count: int = 1
    """Number of completions."""
    scores: tuple[Score, ...] = ()
    """Raw scores by part, once scored."""
    reward: float | None = None
    """Weighted sum of the scores; None until scored, and None for ever if scoring failed."""
    turn_scores: tuple[Mapping[str, float], ...] = ()
    """What the environment scored after each completion, by name; their sums are among ``scores``."""

    @property
    def truncated(self) -> bool:
        """True if the last completion was cut off."""
        return self.ending is Ending.LENGTH

    @property
    def sampled_count(self) -> int:
        """Number of tokens the policy sampled, over all segments."""
        return sum(sum(segment.loss_mask) for segment in self.segments)


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Rollouts of one task instance with their scores: the one carrier of online and offline training."""

    position: int
    """Place in the run's task order, unique per run: the group's identity."""
    task: Task
    """The task all rollouts share."""
    rollouts: tuple[Rollout, ...]
    """The rollouts that have a reward (for demonstrations: one, without)."""
    failed: int = 0
    """Rollouts dropped because scoring them failed or timed out."""
    greedy: Rollout | None = None
    """The rollout at temperature 0 that ``Needs.greedy`` asks for: scored, never trained."""

    @property
    def rewards(self) -> tuple[float, ...]:
        """Rewards in rollout order; raises if one is missing."""
        missing = [r.index for r in self.rollouts if r.reward is None]
        if missing:
            raise ValueError(f"group {self.position}: rollouts {missing} have no reward")
        return tuple(float(r.reward) for r in self.rollouts if r.reward is not None)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sample:
    """One token row ready for the loss. Arrays have one entry per token of the row (length L)."""

    ids: np.ndarray
    """int64 [L]."""
    loss_mask: np.ndarray
    """bool [L]: the tokens that train. Never true at index 0, which nothing predicts."""
    prompt_length: int
    """Leading tokens that samples of the same ``group`` may share."""
    group: int
    """Position of the group."""
    rollout: int
    """Index of the rollout within its group; segments of one rollout share it."""
    advantages: np.ndarray
    """float64 [L]; read only where ``loss_mask``."""
    rollout_logprobs: np.ndarray
    """float64 [L]; read only where ``loss_mask``; NaN where unknown."""
    versions: np.ndarray
    """int64 [L]; -1 where not sampled."""
    turns: np.ndarray
    """int64 [L]; -1 where not sampled."""
    token_weight: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Weight streams by loss part, float64 [L]; each sums to one over the step's whole batch."""
    old_logprobs: np.ndarray | None = None
    """float64 [L]: the learner's own, from the start of the update."""
    ref_logprobs: np.ndarray | None = None
    """float64 [L]: the reference's."""
    teacher_logprobs: np.ndarray | None = None
    """float64 [L]: the teacher's; NaN where one with another tokenizer has no word on a token."""
    values: np.ndarray | None = None
    """float64 [L]: the critic's values when the update started, read only where ``loss_mask``."""
    returns: np.ndarray | None = None
    """float64 [L]: what the critic is to predict; NaN where it is not trained."""
    bootstrap: float = 0.0
    """The critic's value of the state after the row, if a limit cut the rollout off; 0 if it ended by itself."""
    mismatch: np.ndarray | None = None
    """float64 [L]: weight of each token's policy loss for having been sampled by another policy; applied once,
    into the policy stream, by ``batches.build.weigh``."""
    selected: np.ndarray | None = None
    """bool [L]: tokens that ``refine`` singled out over the whole batch, for the loss to treat differently."""
    reward: float = float("nan")
    """Reward of the rollout; in a preference group the chosen one has the larger."""
    ending: Ending = Ending.STOP
    """How the rollout ended."""
    totals: Mapping[str, float] = field(default_factory=dict)
    """Counts over the step's whole batch, set together with ``token_weight``: ``rows``, ``tokens``, ``groups``, and of
    the rollouts that move ``rollouts``, ``pairs`` (two of one group whose rewards differ), ``pair_tokens`` (tokens of
    the better one, over all pairs) and ``comparing`` (groups with a pair)."""
    images: Mapping[str, Any] = field(default_factory=dict)
    """What the processor made of the row's images, by the model's argument name; empty for text."""
    task: Task | None = None
    """The task it belongs to: who teaches it."""

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Where one prompt and its continuations lie in a packed row: each branch sees the prefix and itself."""

    prefix_start: int
    """Row index of the prefix's first token."""
    prefix_length: int
    """Tokens in the prefix; 0 for a packed sample that shares nothing."""
    branches: tuple[tuple[int, int], ...]
    """(start, length) of each continuation."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Microbatch:
    """Samples laid out for one forward pass."""

    samples: tuple[Sample, ...]
    """The samples, in the order of the token batch."""
    layout: Layout
    """Which layout the arrays below have."""
    ids: np.ndarray
    """int64 [rows, width]; packed and shared layouts have one row."""
    positions: np.ndarray
    """int64 [rows, width]: position of each token in its own sample."""
    blocks: tuple[Block, ...]
    """Attention structure of the single row; empty for the padded layout."""
    sources: np.ndarray
    """int64 [N]: index into the flattened rows x width of the hidden state that predicts each trained token."""
    targets: np.ndarray
    """int64 [N]: the trained token ids, sample after sample, left to right."""

    @property
    def token_count(self) -> int:
        """Token places computed in a forward pass, padding included."""
        return int(self.ids.size)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TokenBatch:
    """The trained tokens of a microbatch, flat: N entries, sample after sample; masked places do not exist here."""

    samples: torch.Tensor
    """int64 [N]: index of each token's sample, ascending from 0."""
    sample_count: int
    """Number of samples."""
    advantages: torch.Tensor
    """[N]."""
    token_weight: Mapping[str, torch.Tensor]
    """Weight streams by loss part, [N] each."""
    old_logprobs: torch.Tensor | None = None
    """[N], detached; None means: use the current ones, detached (the ratio is one)."""
    rollout_logprobs: torch.Tensor | None = None
    """[N], detached."""
    ref_logprobs: torch.Tensor | None = None
    """[N], detached."""
    teacher_logprobs: torch.Tensor | None = None
    """[N], detached; NaN where a teacher with another tokenizer has no word."""
    divergence: torch.Tensor | None = None
    """[N], with gradient: what ``Needs.divergence`` gives between student and teacher at each token."""
    turns: torch.Tensor | None = None
    """int64 [N]."""
    selected: torch.Tensor | None = None
    """bool [N]: tokens that ``refine`` singled out over the whole batch; None if it did not."""
    old_values: torch.Tensor | None = None
    """[N]: the critic's values when the update started."""
    returns: torch.Tensor | None = None
    """[N]: what the critic is to predict."""
    groups: torch.Tensor | None = None
    """int64 [samples]: position of each sample's group."""
    rewards: torch.Tensor | None = None
    """[samples]: reward of each sample's rollout; NaN where there is none."""
    totals: Mapping[str, float] = field(default_factory=dict)
    """Counts over the step's whole batch: see ``Sample.totals``."""
    log_collision: torch.Tensor | None = None
    """[N], detached: what ``Needs.collision`` gives."""
    rollouts: torch.Tensor | None = None
    """int64 [samples]: index of each sample's rollout in its group; segments of one rollout share it."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Loss:
    """What an algorithm returns for one microbatch."""

    total: torch.Tensor
    """Scalar: sum over tokens of loss x token_weight, so that microbatches add up to the step's loss."""
    stats: Mapping[str, Stat] = field(default_factory=dict)
    """Numbers to watch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    """Proof that the engine carries the learner's weights."""

    version: int
    """Version carried."""
    digest: str
    """Digest of the weights, equal on both sides."""
    seconds: float
    """Time it took."""
    size: int
    """Bytes moved; 0 when the engine aliases the learner."""
