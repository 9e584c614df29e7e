"""The value that a function of the user gives: one rollout at a time, or a whole group in TRL's style.

Ours: ``f(rollout) -> float | bool | None | Score``. TRL's, known by a parameter named ``completions``:
``f(prompts, completions, completion_ids, **columns) -> list[float | None]``. Both may be async. None means that
the part does not apply. The function runs in a forked process, in its main thread, with a deadline that kills;
whatever else it returns (NaN, text, too few values) or does (raise, hang, exit, crash) is a typed failure with a
message, never a number.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import math
import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any, cast

from pydantic import Field

from posttrain.config import Settings
from posttrain.errors import ConfigError, did_you_mean
from posttrain.processes import KillingPool, Reply, describe
from posttrain.types import Outcome, Rollout, Score, Task

__all__ = ["Config", "Function"]

FROM_PYTHON = (
    "was given from Python and cannot be found by that name: continue its run with "
    "posttrain.resume(run, reward=the_function)"
)

Verdict = tuple[str, float | None, str]
"""Outcome, value and detail: a score as plain data."""


class Config(Settings):
    """Which function, and how it is run."""

    function: str | Callable[..., Any]
    """``module:function``, or the function itself when called from Python."""
    timeout_seconds: float = Field(10.0, gt=0, allow_inf_nan=False)
    """Deadline of one call; then its process is killed."""
    workers: int = Field(2, gt=0)
    """Processes that run the function at the same time."""
    inline: bool = False
    """Run the function in this process, without deadline: faster, for functions you trust."""
    chat: bool = False
    """TRL's style only: pass prompts and completions as chat messages instead of text."""


class Function:
    """Scores with a function of the user; see the module."""

    def __init__(self, config: Config, name: str = "function") -> None:
        self.config = config
        self.name = name
        self._function = load(config.function)
        self._label = label(self._function)
        self._grouped = takes_group(self._function, self._label)
        self._call = _Call(self._function, self._label)
        self._pool = None if config.inline else KillingPool(self._call, workers=config.workers)

    async def score(self, rollouts: Sequence[Rollout], task: Task) -> list[Score]:
        """Return one score per rollout: a TRL function sees the group in one call, ours each rollout alone."""
        if not self._grouped:
            verdicts = await asyncio.gather(*(self._one(rollout) for rollout in rollouts))
            return [self._score(verdict) for verdict in verdicts]
        try:
            keywords = self._keywords(rollouts, task)
        except ConfigError as error:
            return [self._score((Outcome.FAILED, None, str(error))) for _ in rollouts]
        seed = rollouts[0].seed if rollouts else 0
        values = await self._ask((keywords, len(rollouts), seed))
        return [self._score(verdict) for verdict in values]

    async def _one(self, rollout: Rollout) -> Verdict:
        return (await self._ask((rollout, 1, rollout.seed)))[0]

    async def _ask(self, argument: tuple[Any, int, int]) -> list[Verdict]:
        """Run the function on one argument, here or in a process; one verdict per rollout."""
        if self._pool is None:
            try:
                return await self._call.inline(argument)
            except Exception as error:  # the user's code may raise anything, and that is data
                reply = Reply(status="raised", detail=describe(error))
        else:
            reply = await self._pool.call(argument, seconds=self.config.timeout_seconds)
        if reply.status == "done":
            return [(outcome, value, detail) for outcome, value, detail in reply.value]
        outcome = Outcome.TIMEOUT if reply.status == "timeout" else Outcome.FAILED
        return [(outcome, None, f"{self._label}: {reply.detail}")] * argument[1]

    def _score(self, verdict: Verdict) -> Score:
        outcome, value, detail = verdict
        return Score(name=self.name, value=value, outcome=Outcome(outcome), detail=detail)

    def _keywords(self, rollouts: Sequence[Rollout], task: Task) -> dict[str, Any]:
        """Build TRL's keyword arguments: lists with one entry per rollout, columns repeated."""
        prompt: Any = list(task.messages) if self.config.chat else str(task.messages[-1].get("content", ""))
        columns = {"answer": task.answer, "task_id": task.id} | dict(task.columns)
        offered: dict[str, Any] = {name: [value] * len(rollouts) for name, value in columns.items()}
        offered["prompts"] = [prompt] * len(rollouts)
        offered["completions"] = [self._completion(rollout, len(task.messages)) for rollout in rollouts]
        offered["completion_ids"] = [_sampled_ids(rollout) for rollout in rollouts]
        return _accepted(self._function, self._label, offered)

    def _completion(self, rollout: Rollout, opening: int) -> Any:
        return list(rollout.messages[opening:]) if self.config.chat else rollout.text


class _Call:
    """Calls the function and turns what it returns into verdicts; inherited by the child processes."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._function = function
        self._name = name

    def __call__(self, argument: tuple[Any, int, int]) -> list[Verdict]:
        """Call in a child: its random numbers start from the rollout's seed, so a resumed run scores alike."""
        inputs, count, seed = argument
        random.seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed % 2**32)
        returned = self._start(inputs)
        if inspect.isawaitable(returned):
            returned = asyncio.run(_finish(returned))
        return self._verdicts(inputs, returned, count)

    async def inline(self, argument: tuple[Any, int, int]) -> list[Verdict]:
        """Call in this process."""
        inputs, count, _ = argument
        returned = self._start(inputs)
        if inspect.isawaitable(returned):
            returned = await returned
        return self._verdicts(inputs, returned, count)

    def _start(self, inputs: Any) -> Any:
        return self._function(**inputs) if isinstance(inputs, dict) else self._function(inputs)

    def _verdicts(self, inputs: Any, returned: Any, count: int) -> list[Verdict]:
        if not isinstance(inputs, dict):
            return [verdict(returned, self._name)]
        values = returned.tolist() if getattr(returned, "ndim", None) == 1 else returned
        if not isinstance(values, list | tuple):
            detail = f"{self._name} returned {_shown(values)}; expected a list of {count} numbers or None"
            return [(Outcome.FAILED, None, detail)] * count
        if len(values) != count:
            detail = f"{self._name} returned {len(values)} values for {count} completions; expected one each"
            return [(Outcome.FAILED, None, detail)] * count
        return [verdict(value, self._name) for value in values]


async def _finish(awaitable: Any) -> Any:
    return await awaitable


def verdict(value: Any, name: str) -> Verdict:
    """Read one returned value: a finite number or bool, None, or a Score; everything else has failed."""
    if value is None:
        return (Outcome.SCORED, None, "does not apply")
    if isinstance(value, Score):
        if value.value is None or value.outcome in (Outcome.TIMEOUT, Outcome.FAILED):
            return (value.outcome, None, str(value.detail))
        number, detail, outcome = cast(Any, value.value), str(value.detail), value.outcome
    else:
        number, detail, outcome = value, "", Outcome.SCORED
    if getattr(number, "ndim", None) == 0 and hasattr(number, "item"):
        number = number.item()  # a scalar array or tensor
    expected = "expected a finite number, True, False, None or a Score"
    if not isinstance(number, Real | Decimal):
        return (Outcome.FAILED, None, f"{name} returned {_shown(number)}; {expected}")
    try:
        real = float(number)
    except (OverflowError, ValueError):
        return (
            Outcome.FAILED,
            None,
            f"{name} returned a {type(number).__name__} that is no finite float64; {expected}",
        )
    if not math.isfinite(real):
        return (Outcome.FAILED, None, f"{name} returned {real}; {expected}")
    return (outcome, real, detail)


def _shown(value: Any) -> str:
    return f"{type(value).__name__} {str(value)[:60]!r}" if isinstance(value, str) else type(value).__name__


def _sampled_ids(rollout: Rollout) -> list[int]:
    return [
        token
        for segment in rollout.segments
        for token, sampled in zip(segment.ids, segment.loss_mask, strict=True)
        if sampled
    ]


def load(function: str | Callable[..., Any]) -> Callable[..., Any]:
    """Return the function itself, or the one that ``module:function`` names; raise ConfigError if there is none."""
    if not isinstance(function, str):
        return function
    module_name, separator, attribute = function.partition(":")
    if not separator or not module_name or not attribute:
        raise ConfigError(f"reward function {function!r} is not module:function, for example my_rewards:brevity")
    if "<" in attribute:
        raise ConfigError(f"reward function {function!r} {FROM_PYTHON}")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # a file beside the recipe, as `python file.py` would find it
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"reward function {function!r}: module '{module_name}' cannot be imported: {error}. "
            "It must be installed or lie in the current folder."
        ) from error
    found = getattr(module, attribute, None)
    if module_name == "__main__" and not callable(found):
        raise ConfigError(f"reward function {function!r} {FROM_PYTHON}")
    if not callable(found):
        known = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise ConfigError(f"module '{module_name}' has no function '{attribute}'.{did_you_mean(attribute, known)}")
    return cast(Callable[..., Any], found)


def label(function: Callable[..., Any]) -> str:
    """Return the name a message calls the function by."""
    name = getattr(function, "__qualname__", type(function).__qualname__).replace("<locals>.", "")
    return f"reward function '{name}'"


def _parameters(function: Callable[..., Any], name: str) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} has no signature that can be read: {error}. Wrap it in a def.") from error


def takes_group(function: Callable[..., Any], name: str) -> bool:
    """True for TRL's style, False for one rollout; raise ConfigError if the signature is neither."""
    parameters = _parameters(function, name)
    if "completions" in parameters:
        return True
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [
        p for p in parameters.values() if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    places = [p for p in parameters.values() if p.kind in kinds or p.kind is p.VAR_POSITIONAL]
    if places and (not required or (len(required) == 1 and required[0].kind in kinds)):
        return False
    raise ConfigError(
        f"{name} takes ({', '.join(parameters)}); expected either one parameter, the rollout, "
        "or TRL's style with a parameter named completions: f(prompts, completions, **columns)."
    )


def _accepted(function: Callable[..., Any], name: str, offered: dict[str, Any]) -> dict[str, Any]:
    """Keep the arguments that the function takes; raise ConfigError if it demands one that there is not."""
    parameters = _parameters(function, name)
    named = [p for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for parameter in named:
        if parameter.default is parameter.empty and parameter.name not in offered:
            raise ConfigError(
                f"{name} demands '{parameter.name}', which the task does not have."
                + did_you_mean(parameter.name, offered)
            )
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return offered
    return {p.name: offered[p.name] for p in named if p.name in offered}
