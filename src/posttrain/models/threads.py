"""How many compute threads this machine can really give, chosen on purpose and kept with the run.

Too many threads on busy cores spin and slow each other down; one thread on an idle machine wastes it. The number is
the user's, or ``OMP_NUM_THREADS``, or else the fewest threads that a short measurement finds fast, never more than
the process may use. It changes the order of floating-point sums, so a resumed run takes the recorded number again.
Importing this file loads no torch: ``prepare_environment`` must run before torch does.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.errors import ConfigError

__all__ = ["ThreadPlan", "apply_threads", "choose_threads", "prepare_environment", "usable_cores"]

ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0", "TOKENIZERS_PARALLELISM": "false"}
"""Waiting threads sleep instead of spinning (GNU and Intel OpenMP); tokenizers do not fight forked workers."""

WORTHWHILE = 0.85
"""More threads are taken only if they cut the measured time to this share or less."""

Timer = Callable[[int], float]
"""Seconds that a fixed piece of work takes with so many threads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ThreadPlan:
    """The number of compute threads of a run and where it comes from."""

    threads: int
    """Compute threads inside one operation."""
    reason: str
    """Why this number, in one sentence."""
    environment: Mapping[str, str]
    """The thread settings of the environment that the process runs under."""


def prepare_environment(environment: MutableMapping[str, str] | None = None) -> dict[str, str]:
    """Set the thread variables that are unset, and return all of them; call it before torch is loaded."""
    target = os.environ if environment is None else environment
    for name, value in ENVIRONMENT.items():
        target.setdefault(name, value)
    return {name: target[name] for name in ENVIRONMENT}


def choose_threads(
    wanted: int | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    timer: Timer | None = None,
    root: Path = Path("/"),
) -> ThreadPlan:
    """Decide the number of compute threads for this process.

    Args:
        wanted: the user's number, or the number a resumed run was recorded with; it is taken as it is.
        environment: where ``OMP_NUM_THREADS`` is looked up; the process's own if not given.
        timer: measures the machine; by default small matrix products, if torch is loaded already.
        root: root of the file system that describes the machine.

    Raises:
        ConfigError: ``wanted`` or ``OMP_NUM_THREADS`` is not a positive number.
    """
    variables = os.environ if environment is None else environment
    kept = {n: variables[n] for n in (*ENVIRONMENT, "OMP_NUM_THREADS", "MKL_NUM_THREADS") if n in variables}
    allowed, why = usable_cores(root)
    if wanted is not None:
        threads, reason = _positive(str(wanted), "run.threads"), "asked for"
        if threads > allowed:
            reason += f", though the process may use only {allowed}: {why}"
    elif variables.get("OMP_NUM_THREADS"):
        threads, reason = _positive(variables["OMP_NUM_THREADS"].split(",")[0], "OMP_NUM_THREADS"), "OMP_NUM_THREADS"
    else:
        threads, reason = _measure(allowed, why, timer or (_time_products if "torch" in sys.modules else None))
    return ThreadPlan(threads=threads, reason=reason, environment=kept)


def apply_threads(plan: ThreadPlan) -> None:
    """Make the loaded torch compute with the plan's number of threads."""
    _torch().set_num_threads(plan.threads)


def usable_cores(root: Path = Path("/")) -> tuple[int, str]:
    """Return how many threads can compute at once, and the limit that says so."""
    cpus = _affinity()
    limits = [(len(cpus), f"{len(cpus)} logical cores are open to it")]
    physical = _physical_cores(cpus, root)
    if physical:
        limits.append((physical, f"{physical} physical cores are open to it"))
    quota = _quota(root)
    if quota is not None:
        limits.append((max(1, int(quota)), f"the container may use {quota:g} cores"))
    return min(limits, key=lambda limit: limit[0])


def _measure(allowed: int, why: str, timer: Timer | None) -> tuple[int, str]:
    """Return the fewest threads that are fast now, and the reason."""
    if allowed == 1 or timer is None:
        return allowed, why
    best, seconds = 1, timer(1)
    for threads in sorted({max(1, allowed // 2), allowed} - {1}):
        attempt = timer(threads)
        if attempt < WORTHWHILE * seconds:
            best, seconds = threads, attempt
    if best == allowed:
        return allowed, f"{why}, and they are free"
    return best, f"{why}, but more than {best} did not make a matrix product faster: the machine is busy"


def _time_products(threads: int) -> float:
    """Return the best seconds of a few matrix products; takes about 20 to 60 ms and keeps torch's own setting."""
    torch = _torch()
    before = torch.get_num_threads()
    left = torch.full((384, 384), 0.5)
    torch.set_num_threads(threads)
    try:
        left @ left
        times: list[float] = []
        start = time.perf_counter()
        while len(times) < 3 or (len(times) < 20 and time.perf_counter() - start < 0.04):
            began = time.perf_counter()
            left @ left
            times.append(time.perf_counter() - began)
    finally:
        torch.set_num_threads(before)
    return sorted(times)[len(times) // 2]


def _torch() -> Any:
    """Return torch if somebody has loaded it: this file does not."""
    if "torch" not in sys.modules:
        raise RuntimeError("torch is not loaded yet: import it, then apply the thread plan")
    return sys.modules["torch"]


def _positive(text: str, name: str) -> int:
    if not text.strip().isdigit() or int(text) < 1:
        raise ConfigError(f"{name} is {text!r}; expected a whole number of threads, 1 or more")
    return int(text)


def _affinity() -> set[int]:
    """Return the numbers of the cores that the scheduler may put this process on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _physical_cores(cpus: set[int], root: Path) -> int | None:
    """Return the number of physical cores behind the logical ones, or None where the system does not tell."""
    siblings = set()
    for cpu in cpus:
        file = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        text = _read(file)
        if text is None:
            return None
        siblings.add(text)
    return len(siblings)


def _quota(root: Path) -> float | None:
    """Return the container's share of the machine in cores, or None if it has no limit (cgroup version 2, then 1)."""
    own = next(
        (line[3:] for line in (_read(root / "proc/self/cgroup") or "").splitlines() if line.startswith("0::")), "/"
    )
    for folder in (root / "sys/fs/cgroup" / own.lstrip("/"), root / "sys/fs/cgroup"):
        fields = (_read(folder / "cpu.max") or "").split()
        if len(fields) == 2 and fields[0].isdigit():
            return int(fields[0]) / int(fields[1])
    quota = _read(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us")
    period = _read(root / "sys/fs/cgroup/cpu/cpu.cfs_period_us")
    if quota and period and quota.isdigit() and period.isdigit():
        return int(quota) / int(period)
    return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
