"""The clock that tests move."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from oubliette import clock as clock_module
from oubliette.clock import SystemClock
from oubliette.testing.clock import VirtualClock

pytestmark = pytest.mark.anyio


def test_time_stands_still_until_it_is_moved() -> None:
    clock = VirtualClock(start=10.0, wall=100.0)
    assert (clock.monotonic(), clock.time()) == (10.0, 100.0)
    clock.advance(2.5)
    assert (clock.monotonic(), clock.time()) == (12.5, 102.5)
    clock.set_wall(50.0)
    assert (clock.monotonic(), clock.time()) == (12.5, 50.0)


def test_calls_are_made_in_order_each_at_its_time_and_may_make_new_ones() -> None:
    clock = VirtualClock(start=0.0)
    calls: list[tuple[str, float]] = []

    def first() -> None:
        calls.append(("first", clock.monotonic()))
        clock.call_later(1, lambda: calls.append(("new", clock.monotonic())))

    clock.call_later(3, lambda: calls.append(("third", clock.monotonic())))
    clock.call_later(1, first)
    clock.call_later(3, lambda: calls.append(("fourth", clock.monotonic())))
    taken_back = clock.call_later(2, lambda: calls.append(("never", clock.monotonic())))
    taken_back.cancel()
    assert clock.pending == 3
    clock.advance(2)
    assert calls == [("first", 1.0), ("new", 2.0)]
    assert clock.next_due() == 1.0
    clock.advance(1)
    assert calls[2:] == [("third", 3.0), ("fourth", 3.0)]
    assert clock.next_due() is None


async def test_tasks_run_between_the_calls_when_time_elapses() -> None:
    clock = VirtualClock(start=0.0)
    times: list[float] = []

    async def sleep(seconds: float) -> None:
        future = asyncio.get_running_loop().create_future()
        clock.call_later(seconds, lambda: future.set_result(None))
        await future

    async def work() -> None:
        for _ in range(3):
            await sleep(1)
            times.append(clock.monotonic())

    task = asyncio.create_task(work())
    await clock.elapse(10)
    assert times == [1.0, 2.0, 3.0]
    await task


async def test_the_machines_clock_runs_by_itself() -> None:
    clock = SystemClock()
    before = (clock.monotonic(), clock.time())
    called = asyncio.Event()
    clock.call_later(0, called.set)
    clock.call_later(0, called.clear).cancel()
    await asyncio.wait_for(called.wait(), 5)
    assert clock.monotonic() >= before[0]
    assert clock.time() > 1.6e9


@pytest.mark.parametrize("stopped", [True, False])
async def test_what_arrived_while_the_process_was_stopped_is_read_before_its_deadlines_count(
    monkeypatch: pytest.MonkeyPatch, *, stopped: bool
) -> None:
    monkeypatch.setattr(clock_module, "LATE_SECONDS", 0.02)
    monkeypatch.setattr(clock_module, "CATCH_UP_SECONDS", 0.02)
    loop, order, over = asyncio.get_running_loop(), list[str](), asyncio.Event()
    ours, theirs = socket.socketpair()

    def read(turns: int = 5) -> None:  # what is read takes its way through several actors
        if turns:
            loop.call_soon(read, turns - 1)
        else:
            order.append("answer")

    def deadline() -> None:
        order.append("deadline")
        over.set()

    with ours, theirs:
        loop.add_reader(ours, lambda: (loop.remove_reader(ours), read()))
        SystemClock().call_later(0.001, deadline)
        if stopped:
            theirs.send(b"answer")
            time.sleep(0.05)
        async with asyncio.timeout(20):
            await over.wait()
        loop.remove_reader(ours)
    assert order == (["answer", "deadline"] if stopped else ["deadline"])


async def test_a_late_deadline_that_is_cancelled_while_it_waits_does_not_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clock_module, "LATE_SECONDS", 0.02)
    monkeypatch.setattr(clock_module, "CATCH_UP_SECONDS", 0.02)
    came: list[str] = []
    timer = SystemClock().call_later(0.001, lambda: came.append("deadline"))
    time.sleep(0.05)
    await asyncio.sleep(0.001)
    timer.cancel()
    await asyncio.sleep(0.05)
    assert came == []
