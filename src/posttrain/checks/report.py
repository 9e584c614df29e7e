"""What a check says: what was measured, what must hold, and whether it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Status = Literal["pass", "fail", "warn", "skip"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
    """The outcome of one invariant on the user's own model, template and recipe."""

    name: str
    """What must hold, in a few words."""
    status: Status
    """fail stops a run; warn is worth reading; skip says why it could not be tried."""
    measured: str
    """The number, or what was seen."""
    expected: str
    """The bound."""
    seconds: float = 0.0
    """Time it took."""


def verdict(results: Sequence[CheckResult]) -> str:
    """All invariants in one line."""
    held, failed, warned, skipped = (sum(r.status == s for r in results) for s in ("pass", "fail", "warn", "skip"))
    seconds = sum(result.seconds for result in results)
    words = [f"{held} of {len(results)} invariants hold", f"{failed} fail", f"{warned} to read", f"{skipped} skipped"]
    return f"{', '.join(words)} ({seconds:.1f} s)"


def bounded(name: str, value: float, limit: float) -> CheckResult:
    """Pass if ``value`` is finite and at most ``limit``."""
    status: Status = "pass" if value <= limit else "fail"
    return CheckResult(name=name, status=status, measured=f"{value:.3g}", expected=f"at most {limit:.0e}")


def stated(name: str, holds: bool, measured: str, expected: str, *, otherwise: Status = "fail") -> CheckResult:
    """Pass if ``holds``, else ``otherwise``."""
    return CheckResult(name=name, status="pass" if holds else otherwise, measured=measured, expected=expected)
