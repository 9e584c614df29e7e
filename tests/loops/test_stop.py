"""Stopping: asked between stations, while waiting, and by signals."""

import asyncio
import os
import signal
import threading

import pytest

from posttrain.errors import Interrupted
from posttrain.loops.stop import Stop


def test_nobody_asked():
    assert None is Stop().raise_if_asked()


def test_asked():
    stop = Stop()
    stop.ask("enough")
    with pytest.raises(Interrupted, match="enough"):
        stop.raise_if_asked()


def test_the_first_reason_stays():
    stop = Stop()
    stop.ask("first")
    stop.ask("second")
    assert "first" == stop.reason


async def answer():
    return 7


def test_work_is_awaited():
    assert 7 == asyncio.run(Stop().unless_asked(answer()))


def test_what_work_raises_is_raised():
    async def fail():
        raise KeyError("x")

    with pytest.raises(KeyError):
        asyncio.run(Stop().unless_asked(fail()))


def test_work_is_cancelled_when_somebody_asks():
    ended = []

    async def endless():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def scene():
        stop = Stop()
        asyncio.get_running_loop().call_soon(stop.ask, "enough")
        await stop.unless_asked(endless())

    with pytest.raises(Interrupted, match="enough"):
        asyncio.run(scene())
    assert [True] == ended


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_asks(number):
    stop = Stop()
    with stop.on_signals():
        os.kill(os.getpid(), number)
    assert f"stopped by {number.name}" == stop.reason


def test_the_second_signal_ends_at_once():
    stop = Stop()
    with stop.on_signals():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)


def test_handlers_are_given_back():
    before = signal.getsignal(signal.SIGINT)
    with Stop().on_signals():
        inside = signal.getsignal(signal.SIGINT)
    assert (True, True) == (inside is not before, signal.getsignal(signal.SIGINT) is before)


def test_outside_the_main_thread_signals_stay():
    before, seen = signal.getsignal(signal.SIGINT), []

    def work():
        with Stop().on_signals():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [before] == seen
