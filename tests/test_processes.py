"""Real processes that raise, hang, crash, exit and lie; deadlines of half a second."""

import asyncio
import ctypes
import faulthandler
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
import torch

from posttrain.processes import KillingPool


@pytest.fixture
def call():
    """Call a function once, or with several arguments at the same time, in a pool that is closed at the end."""
    pools = []

    def run(function, *arguments, seconds=5.0, workers=2):
        pool = KillingPool(function, workers=workers)
        pools.append(pool)
        return asyncio.run(ask(pool, *arguments, seconds=seconds))

    yield run
    for pool in pools:
        pool.close()


async def ask(pool, *arguments, seconds=5.0):
    replies = await asyncio.gather(*(pool.call(argument, seconds=seconds) for argument in arguments))
    return replies if len(replies) != 1 else replies[0]


def hang(_):
    while True:
        pass


def hang_in_c(_):
    ctypes.PyDLL(None).sleep(1000)


def test_value(call):
    assert ("done", 4) == (lambda reply: (reply.status, reply.value))(call(lambda x: x + 1, 3))


def test_closures_and_lambdas_need_no_pickling(call):
    secret = object()
    assert call(lambda x: id(secret) == x, id(secret)).value


def test_each_call_gets_its_own_answer(call):
    replies = call(lambda x: x * x, *range(50))
    assert [x * x for x in range(50)] == [reply.value for reply in replies]


def test_exception_is_named_with_its_place(call):
    reply = call(lambda x: 1 / x, 0)
    assert ("raised", "ZeroDivisionError: division by zero (test_processes.py, line") == (
        reply.status,
        reply.detail[:60],
    )


class Unpicklable(Exception):
    def __init__(self, a, b):
        super().__init__(a)


def test_exception_that_cannot_be_unpickled_spoils_nothing(call):
    def raise_it(x):
        if x:
            raise Unpicklable(1, 2)
        return x

    assert ["raised", "done", "done"] == [reply.status for reply in call(raise_it, 1, 0, 0)]


class Mute(Exception):
    def __str__(self):
        raise ValueError


def test_exception_whose_text_raises(call):
    def raise_it(_):
        raise Mute

    assert "raised" == call(raise_it, 0).status


def test_sys_exit_is_an_exception_like_any(call):
    assert ("raised", "SystemExit: 0") == (lambda r: (r.status, r.detail[:13]))(call(lambda _: sys.exit(0), 0))


@pytest.mark.parametrize("code", [0, 3])
def test_exit_is_seen_at_once_and_never_a_success(call, code):
    reply = call(lambda _: os._exit(code), 0, seconds=60)
    assert ("died", f"its process ended with exit code {code}") == (reply.status, reply.detail)


def test_segfault(call):
    def crash(_):
        faulthandler.disable()
        ctypes.string_at(0)

    reply = call(crash, 0)
    assert ("died", "its process was killed by SIGSEGV") == (reply.status, reply.detail)


@pytest.mark.parametrize("function", [hang, hang_in_c])
def test_hang_is_killed_and_the_next_call_works(function):
    pool = KillingPool(lambda x: function(x) if x else "fine", workers=1)
    assert ("timeout", "fine") == (
        asyncio.run(ask(pool, 1, seconds=0.4)).status,
        asyncio.run(ask(pool, 0, seconds=5)).value,
    )
    pool.close()


def test_one_that_ignores_sigterm_is_killed(call):
    def stubborn(_):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        hang(_)

    assert "timeout" == call(stubborn, 0, seconds=0.4).status


def test_hangs_do_not_delay_good_calls_of_other_workers(call):
    def sometimes(x):
        return hang(x) if x == 0 else x

    replies = call(sometimes, *range(10), seconds=0.5)
    assert ["timeout"] + ["done"] * 9 == [reply.status for reply in replies]


def test_grandchildren_die_with_a_hang(call, tmp_path):
    path = tmp_path / "pid"

    def spawn(_):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        path.write_text(str(child.pid))
        hang(_)

    assert "timeout" == call(spawn, 0, seconds=1.0).status
    deadline = time.monotonic() + 5
    pid = int(path.read_text())
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_is_no_plain_data_is_an_error_of_the_function(call):
    reply = call(lambda _: object(), 0)
    assert ("raised", True) == (reply.status, "not JSON serializable" in reply.detail)


def test_arguments_that_cannot_be_sent(call):
    assert "raised" == call(lambda _: 0, lambda: 0).status


def test_an_answer_too_large_is_refused(call):
    assert "died" == call(lambda _: "x" * 20_000_000, 0).status


def test_large_arguments_and_answers_pass(call):
    assert 10_000_000 == len(call(lambda text: text, "x" * 10_000_000).value)


def test_closing_every_file_kills_only_that_call():
    pool = KillingPool(lambda x: os.closerange(3, 256) if x else "fine", workers=1)
    first, second = asyncio.run(ask(pool, 1)), asyncio.run(ask(pool, 0))
    assert ("died", "fine") == (first.status, second.value)
    pool.close()


def test_a_function_that_forks_answers_once():
    def fork(x):
        if x:
            os.fork()
        return x

    pool = KillingPool(fork, workers=1)
    assert [1, 0, 0] == [asyncio.run(ask(pool, x)).value for x in (1, 0, 0)]
    pool.close()


def test_function_runs_in_the_main_thread_so_alarms_work(call):
    def alarmed(_):
        signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError("rang")))
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        hang(_)

    assert "TimeoutError: rang" == call(alarmed, 0).detail[:18]


def test_torch_works_in_a_child_of_a_parent_that_used_threads(call):
    torch.set_num_threads(2)
    big = torch.ones(400, 400)
    (big @ big).sum()
    assert 400.0**3 == call(lambda _: float((big @ big).sum()), 0).value


def test_child_may_start_processes_of_its_own(call):
    def nested(_):
        process = multiprocessing.get_context("fork").Process(target=os._exit, args=(7,))
        process.start()
        process.join()
        return process.exitcode

    assert 7 == call(nested, 0).value


def test_pool_outlives_event_loops():
    pool = KillingPool(lambda x: x, workers=1)
    assert [0, 1, 2] == [asyncio.run(ask(pool, x)).value for x in range(3)]
    pool.close()


def test_cancelled_call_kills_its_child():
    pool = KillingPool(lambda x: hang(x) if x else "fine", workers=1)

    async def cancel_and_call():
        task = asyncio.ensure_future(pool.call(1, seconds=60))
        await asyncio.sleep(0.3)
        task.cancel()
        return await pool.call(0, seconds=5)

    assert "fine" == asyncio.run(cancel_and_call()).value
    pool.close()


def test_close_leaves_no_process_behind():
    pool = KillingPool(lambda x: os.getpid(), workers=2)
    pids = {reply.value for reply in asyncio.run(ask(pool, *range(8)))}
    pool.close()
    assert [] == [pid for pid in pids if psutil.pid_exists(pid)]


def test_a_dropped_pool_leaves_no_process_behind():
    pid = asyncio.run(ask(KillingPool(lambda x: os.getpid(), workers=1), 0)).value
    deadline = time.monotonic() + 5
    while psutil.pid_exists(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


SCRIPT = """
import asyncio, os, sys
from posttrain.processes import KillingPool
def work(x):
    print(os.getpid(), flush=True)
    while x:
        pass
pool = KillingPool(work, workers=2)
async def main():
    await pool.call(0, seconds=100)
    await asyncio.gather(pool.call(1, seconds=100), pool.call(1, seconds=100))
asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux")
def test_kill_9_of_the_parent_leaves_no_hung_child_behind():
    parent = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True)
    pids = [int(parent.stdout.readline()) for _ in range(3)]
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 5
    while any(psutil.pid_exists(p) and psutil.Process(p).status() != psutil.STATUS_ZOMBIE for p in set(pids)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_prints_of_the_function_reach_the_terminal(capfd, call):
    call(lambda _: print("seen"), 0)
    assert "seen\n" == capfd.readouterr().out


def test_without_fork_the_message_says_what_to_do(monkeypatch):
    monkeypatch.delattr(os, "fork")
    with pytest.raises(Exception, match="inline = true"):
        KillingPool(lambda x: x)
