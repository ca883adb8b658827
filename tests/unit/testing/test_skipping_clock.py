"""A clock that runs with the machine's, and jumps when a test says so."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from oubliette.errors import InvalidParameter
from oubliette.testing.skipping_clock import SkippingClock

pytestmark = pytest.mark.anyio


async def test_skipping_makes_the_calls_that_become_due_in_the_order_of_their_times() -> None:
    clock, made = SkippingClock(), []
    for seconds in (3600, 60, 7200):
        clock.call_later(seconds, lambda seconds=seconds: made.append(seconds))
    clock.skip(3601)
    assert made == [60, 3600]
    assert clock.pending == 1
    clock.skip(3600)
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
    clock.skip(99.99)
    await asyncio.wait_for(fired.wait(), 5)


async def test_a_cancelled_call_is_not_made() -> None:
    clock, made = SkippingClock(), []
    clock.call_later(10, lambda: made.append(1)).cancel()
    clock.skip(20)
    assert (made, clock.pending) == ([], 0)


async def test_another_thread_skips_and_the_calls_are_made_on_the_loop() -> None:
    clock, made = SkippingClock(), []
    clock.call_later(10, lambda: made.append(threading.get_ident()))
    await asyncio.to_thread(clock.skip, 20)
    assert made == [threading.get_ident()]


async def test_an_error_of_a_call_reaches_the_thread_that_skips() -> None:
    clock = SkippingClock()
    clock.call_later(10, lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        await asyncio.to_thread(clock.skip, 20)


async def test_both_its_times_jump_and_none_goes_back() -> None:
    clock = SkippingClock()
    clock.skip(1000)
    assert clock.skipped == 1000
    assert clock.monotonic() == pytest.approx(time.monotonic() + 1000, abs=5)
    assert clock.time() == pytest.approx(time.time() + 1000, abs=5)
    with pytest.raises(InvalidParameter, match="only goes ahead"):
        clock.skip(-1)
