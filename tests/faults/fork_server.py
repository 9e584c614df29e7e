"""Real `posttrain` processes without the seconds that importing torch costs: one warm process forks each of them.

Reads one JSON request per line, answers with one. A request names arguments, folder, output files, and where the
child shall meet its fault. The fault is planted here, around a function of the library, never in the library.
"""

import atexit
import errno
import functools
import gc
import importlib
import inspect
import json
import os
import signal
import sys
import tempfile
import time
import traceback

import pyarrow

from posttrain.cli import check, eval, main, train
from posttrain.config import Lora, Model
from posttrain.models.load import load_model
from posttrain.models.lora import add_lora
from posttrain.models.tiny import build_toy

VERBS = (check, eval, train)
PLUGS = (
    "algorithms.dapo",
    "algorithms.grpo",
    "algorithms.sft",
    "engines.local",
    "envs.single_turn",
    "learners.local",
    "rewards.exact",
    "rewards.function",
    "weight_sync.alias",
)
"""What the children need, loaded once."""


def plant(target, *, call, when, do):
    """Wrap ``module:attribute`` so that its call number ``call`` meets the fault ``before`` or ``after`` it runs."""
    module_name, _, path = target.partition(":")
    owner = importlib.import_module(module_name)
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    original = getattr(owner, name)
    calls = 0

    def fault(moment, arguments):
        if moment == when and calls == call:
            FAULTS[do](*arguments)

    @functools.wraps(original)
    def wrapped(*arguments, **options):
        nonlocal calls
        calls += 1
        fault("before", arguments)
        result = original(*arguments, **options)
        if not inspect.isawaitable(result):
            fault("after", arguments)
            return result
        return finish(result, calls == call, arguments)

    async def finish(result, mine, arguments):
        value = await result
        if mine and when == "after":
            FAULTS[do](*arguments)
        return value

    setattr(owner, name, wrapped)


def kill(*arguments):
    """Die like a process that ran out of memory: no handler runs, nothing is flushed."""
    os.kill(os.getpid(), signal.SIGKILL)


def tear(lines, row):
    """Write half of the line that is being appended, then die."""
    with open(lines.path, "ab") as stream:
        stream.write(json.dumps(row).encode()[: len(json.dumps(row)) // 2])
    kill()


def fill_disk(*arguments):
    """Fail as a full disk does."""
    raise OSError(errno.ENOSPC, "No space left on device")


def interrupt(*arguments):
    """Be asked to stop, as by Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT)


def terminate(*arguments):
    """Be asked to stop by the system."""
    os.kill(os.getpid(), signal.SIGTERM)


def interrupt_twice(*arguments):
    """Be asked to stop by somebody in a hurry."""
    interrupt()
    time.sleep(0.01)
    interrupt()


FAULTS = {
    "kill": kill,
    "tear": tear,
    "fill_disk": fill_disk,
    "interrupt": interrupt,
    "terminate": terminate,
    "interrupt_twice": interrupt_twice,
}


def become(request):
    """Turn the forked child into the process that was asked for."""
    os.chdir(request["folder"])
    for number, name in ((0, os.devnull), (1, request["out"]), (2, request["err"])):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(name, flags, 0o600), number)
    sys.argv = ["posttrain", *request["words"]]
    sys.path.insert(0, request["folder"])
    for fault in request["faults"]:
        plant(**fault)
    leave(main.main)


def leave(call):
    """Call and exit as Python does, but spare the half second in which it takes a large process apart."""
    code = 0
    try:
        call()
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def wait(child, request):
    """Return the child's exit code, negative for a signal; kill it at the asked second or at the time limit."""
    started = time.monotonic()
    deadline = started + min(request["kill_after"] or 1e9, request["limit"])
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return {"code": os.waitstatus_to_exitcode(status), "seconds": time.monotonic() - started}
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            deadline = 1e18
        time.sleep(0.002)


def warm_up():
    """Load, in the parent, every module that a run would load late; nothing is computed, so no thread starts."""
    with tempfile.TemporaryDirectory() as folder:
        for part in build_toy(seed=0, hidden=8, intermediate=8, layers=1, heads=1, kv_heads=1):
            part.save_pretrained(folder)
        add_lora(load_model(Model(path=folder), seed=0).model, Lora(rank=1), 0)
    pyarrow.Table.from_pylist([{"number": 1}])
    for name in PLUGS:
        importlib.import_module(f"posttrain.{name}")
    gc.freeze()


def serve():
    """Answer requests until the input ends."""
    warm_up()
    print(json.dumps({"ready": True}), flush=True)
    while line := sys.stdin.readline():
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            become(request)
        print(json.dumps(wait(child, request)), flush=True)


if __name__ == "__main__":
    serve()
