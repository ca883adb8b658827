"""A clock that runs with the machine's, and jumps when a test says so."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from oubliette.errors import Conflict, InvalidParameter
from oubliette.testing.skipping_clock import SkippingClock

pytestmark = pytest.mark.anyio


async def test_skipping_makes_the_calls_that_become_due_in_the_order_of_their_times() -> None:
    clock, made = SkippingClock(), []
    for seconds in (3600, 60, 7200):
        clock.call_later(seconds, lambda seconds=seconds: made.append(seconds))
    await clock.skip(3601)
    assert made == [60, 3600]
    assert clock.pending == 1
    await clock.skip(3600)
    assert made == [60, 3600, 7200]
    assert clock.pending == 0


async def test_time_also_passes_without_a_skip() -> None:
    clock, fired = SkippingClock(), asyncio.Event()
    clock.call_later(0.01, fired.set)
    await asyncio.wait_for(fired.wait(), 5)
    assert clock.pending == 0


async def test_a_skip_brings_later_calls_nearer() -> None:
    clock, fired = SkippingClock(), asyncio.Event()
    clock.call_later(100, fired.set)
    await clock.skip(99.99)
    await asyncio.wait_for(fired.wait(), 5)


async def test_a_cancelled_call_is_not_made() -> None:
    clock, made = SkippingClock(), []
    clock.call_later(10, lambda: made.append(1)).cancel()
    await clock.skip(20)
    assert (made, clock.pending) == ([], 0)


async def test_another_thread_skips_and_the_calls_are_made_on_the_loop() -> None:
    clock, made = SkippingClock(), []
    clock.call_later(10, lambda: made.append(threading.get_ident()))
    await asyncio.to_thread(clock.skip_blocking, 20)
    assert made == [threading.get_ident()]


async def test_an_error_of_a_call_reaches_the_thread_that_skips() -> None:
    clock = SkippingClock()
    clock.call_later(10, lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        await asyncio.to_thread(clock.skip_blocking, 20)


async def test_both_its_times_jump_and_none_goes_back() -> None:
    clock = SkippingClock()
    await clock.skip(1000)
    assert clock.skipped == 1000
    assert clock.monotonic() == pytest.approx(time.monotonic() + 1000, abs=5)
    assert clock.time() == pytest.approx(time.time() + 1000, abs=5)
    with pytest.raises(InvalidParameter, match="only goes ahead"):
        await clock.skip(-1)


async def test_tasks_run_between_two_deadlines_so_that_an_answer_cancels_the_later_one() -> None:
    clock, made = SkippingClock(), []
    limit = clock.call_later(15, lambda: made.append("too late"))
    asked = asyncio.Event()

    async def answer() -> None:
        await asked.wait()
        await asyncio.sleep(0)
        limit.cancel()

    answering = asyncio.create_task(answer())
    clock.call_later(10, asked.set)
    await clock.skip(3600)
    assert answering.done()
    assert made == []


async def test_work_outside_the_loop_ends_before_the_next_deadline() -> None:
    clock, made = SkippingClock(), []
    limit = clock.call_later(15, lambda: made.append("too late"))
    written = threading.Event()
    working: list[asyncio.Task[None]] = []

    async def answer() -> None:
        await asyncio.to_thread(written.wait, 5)
        limit.cancel()

    async def barrier() -> None:
        if working:
            written.set()
            await working[0]

    clock.drain_with(barrier)
    clock.call_later(10, lambda: working.append(asyncio.create_task(answer())))
    await clock.skip(20)
    assert made == []


async def test_a_deadline_that_is_set_during_a_skip_passes_in_it() -> None:
    clock, made = SkippingClock(), []

    def again() -> None:
        made.append(clock.skipped)
        if len(made) < 3:
            clock.call_later(100, again)

    clock.call_later(100, again)
    await clock.skip(1000)
    assert made == pytest.approx([100, 200, 300], abs=5)
    assert (clock.skipped, clock.pending) == (1000, 0)


async def test_skips_of_two_tasks_come_one_after_the_other() -> None:
    clock, made = SkippingClock(), []
    for seconds in (150, 50, 250):
        clock.call_later(seconds, lambda seconds=seconds: made.append(seconds))
    await asyncio.gather(clock.skip(100), clock.skip(100))
    assert (made, clock.skipped) == ([50, 150], 200)


async def test_the_thread_of_a_loop_may_not_wait_for_itself() -> None:
    with pytest.raises(Conflict, match="skip_blocking"):
        SkippingClock().skip_blocking(1)


def test_a_thread_skips_where_no_loop_has_used_the_clock() -> None:
    clock = SkippingClock()
    clock.skip_blocking(10)
    assert clock.skipped == 10
