"""What an evaluation found: one row per prompt, and the numbers over prompts with their intervals and protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from posttrain.evals.fingerprint import Fingerprint
from posttrain.functional.intervals import Interval
from posttrain.functional.passk import pass_at_k
from posttrain.records.json_lines import to_plain


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptResult:
    """The samples of one task."""

    id: str
    """The task's id."""
    samples: int
    """Samples that were scored."""
    right: int
    """How many of them are right."""
    majority: float
    """Expected correctness of the most frequent answer."""
    reward: float
    """Mean reward of the scored samples; 0 if there is none."""
    truncated: int
    """Scored samples cut off by the token limit."""
    tokens: int
    """Tokens sampled, over the scored samples."""
    answers: int = 0
    """Different answers that were read from the scored samples."""
    failed: int = 0
    """Samples whose scoring failed or timed out; they count in no number but this one."""

    def pass_at(self, k: int) -> float:
        """Unbiased pass@k of this prompt; raises ValueError if fewer than k samples were scored."""
        return pass_at_k(self.samples, self.right, k)


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalResult:
    """One evaluation of one set of weights."""

    pass_at: Mapping[int, Interval]
    """Unbiased pass@k by k, over the prompts with at least k scored samples."""
    average: Interval
    """avg@n: share of right samples per prompt, averaged over prompts."""
    majority: Interval | None
    """Share of prompts whose most frequent answer is right, ties by their chance; None if the verifier reads none."""
    reward: float
    """Mean over prompts of the mean reward."""
    truncated_share: float
    """Share of scored samples cut off by the token limit."""
    mean_length: float
    """Mean number of sampled tokens per scored sample."""
    failed: int
    """Samples whose scoring failed or timed out."""
    unscored: int
    """Prompts without a single scored sample; they are in no number."""
    prompts: tuple[PromptResult, ...]
    """Every prompt, in task order."""
    fingerprint: Fingerprint
    """The protocol."""
    step: int | None = None
    """Optimizer step of the weights, if they belong to a run."""
    label: str = ""
    """What was evaluated, for people."""
    warnings: tuple[str, ...] = field(default=())
    """What a reader of the numbers must know."""

    def to_json(self) -> dict[str, Any]:
        """The result as JSON can hold it."""
        row = to_plain(asdict(self))
        return dict(row | {"fingerprint": self.fingerprint.to_json(), "digest": self.fingerprint.digest})

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> EvalResult:
        """Read what `to_json` gave; raises KeyError or TypeError where it is something else."""
        plain = {key: value for key, value in row.items() if key != "digest"}
        return cls(
            **plain
            | {
                "pass_at": {int(k): Interval(**interval) for k, interval in row["pass_at"].items()},
                "average": Interval(**row["average"]),
                "majority": None if row["majority"] is None else Interval(**row["majority"]),
                "prompts": tuple(PromptResult(**prompt) for prompt in row["prompts"]),
                "fingerprint": Fingerprint.from_json(row["fingerprint"]),
                "warnings": tuple(row["warnings"]),
            }
        )

    def metrics(self) -> dict[str, float]:
        """The numbers by name, as a run's metrics hold them: ``eval/<name>``."""
        numbers = {f"eval/pass@{k}": interval.mean for k, interval in self.pass_at.items()}
        if self.majority is not None:
            numbers["eval/majority"] = self.majority.mean
        return numbers | {
            f"eval/avg@{self.fingerprint.samples}": self.average.mean,
            "eval/reward": self.reward,
            "eval/truncated_share": self.truncated_share,
            "eval/mean_length": self.mean_length,
            "eval/failed": float(self.failed),
        }

    def by_prompt(self, number: Callable[[PromptResult], float]) -> dict[str, float]:
        """One number per scored prompt, by task id."""
        return {prompt.id: number(prompt) for prompt in self.prompts if prompt.samples}
