"""Credit for sampled tokens by kind: from token rewards and values to advantages and the critic's targets.

token           plain GAE over the sampled tokens of a rollout, tool output skipped
turn_truncated  the same, but no advantage crosses from one turn to the one before: only the next turn's value does
turn            a turn is one action (Turn-PPO, arXiv 2512.17008): the critic is read and trained at its first token
bi_level        over turn ends first, then inside each turn (VAGEN, arXiv 2510.16907)
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from posttrain.functional.gae import advantages, bi_level, turn_level

Kind = Literal["token", "turn_truncated", "turn", "bi_level"]


def credit(
    kind: Kind,
    rewards: Tensor,
    values: Tensor,
    samples: Tensor,
    count: int,
    *,
    turns: Tensor,
    gamma: float = 1.0,
    lambda_: float | Tensor = 0.95,
    turn_gamma: float | None = None,
    turn_lambda: float | None = None,
    bootstrap: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (advantages, targets), [N] each; a target is NaN where the critic is not trained.

    ``rewards``, ``values`` [N]; ``samples``, ``turns`` int64 [N]; ``bootstrap`` [count]. For ``turn`` gamma and lambda
    count turns; ``turn_gamma`` and ``turn_lambda`` are those between turns of the other kinds (where None: gamma, and
    lambda, or 0 for ``turn_truncated``). Raises ValueError for a lambda per row where the kind takes one number.
    """
    if kind in ("turn", "bi_level") and isinstance(lambda_, Tensor):
        raise ValueError(f"{kind} takes one lambda, not one per row")
    if kind == "turn":
        assert not isinstance(lambda_, Tensor)
        per_token, targets, trained = turn_level(
            rewards, values, samples, turns, count, gamma=gamma, lambda_=lambda_, bootstrap=bootstrap
        )
        return per_token, targets.masked_fill(~trained, torch.nan)
    if kind == "bi_level":
        assert not isinstance(lambda_, Tensor)
        between = gamma if turn_gamma is None else turn_gamma
        options = {"gamma": gamma, "turn_gamma": between, "turn_lambda": turn_lambda}
        found = bi_level(rewards, values, samples, turns, count, lambda_=lambda_, bootstrap=bootstrap, **options)  # type: ignore[arg-type]
        return found, found + values.detach()
    crossing = 0.0 if kind == "turn_truncated" and turn_lambda is None else turn_lambda
    found = advantages(
        rewards,
        values,
        samples,
        count,
        gamma=gamma,
        lambda_=lambda_,
        turns=turns,
        turn_gamma=turn_gamma,
        turn_lambda=crossing,
        bootstrap=bootstrap,
    )
    return found, found + values.detach()
