"""A handler that blocks its loop is found out, with the place."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

import pytest
import structlog

from oubliette.kit import Actor, System, handles
from oubliette.kit import watchdog as watchdog_module
from tests.unit.kit.vocabulary import Get

if TYPE_CHECKING:
    from oubliette.kit.watchdog import Blocked

pytestmark = pytest.mark.anyio


class Blocker(Actor):
    """Blocks the loop until the watchdog has looked."""

    def __init__(self, looked: threading.Event) -> None:
        self.looked = looked

    @handles(Get)
    def _get_that_blocks(self, _: Get) -> int:
        return int(self.looked.wait(10))


async def test_a_handler_that_blocks_the_loop_is_reported_with_the_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = threading.Event()
    real = watchdog_module.Watchdog._report

    def report(self: watchdog_module.Watchdog, asked: float) -> None:
        # The moment at which a real handler would go on blocking.
        threading.Timer(0.05, looked.set).start()
        real(self, asked)

    monkeypatch.setattr(watchdog_module.Watchdog, "_report", report)
    with structlog.testing.capture_logs() as logs:
        async with System("blocked", watchdog=0.1) as system, asyncio.timeout(20):
            assert await system.spawn(Blocker, looked).ask(Get()) == 1
            while not system.blocked:
                await asyncio.to_thread(lambda: None)
            [blocked] = _seen(system)
    assert blocked.seconds >= 0.1
    assert "_get_that_blocks" in blocked.stack
    assert [log["event"] for log in logs if log["log_level"] == "warning"] == ["loop was blocked"]


def _seen(system: System) -> tuple[Blocked, ...]:
    return system.blocked[:1]


async def test_a_system_without_a_watchdog_has_nothing_to_say_and_no_thread() -> None:
    async with System("quiet", watchdog=None) as system:
        assert system.blocked == ()
        assert not any("quiet" in thread.name for thread in threading.enumerate())


async def test_the_watchdogs_thread_ends_with_its_system_at_once() -> None:
    async with System("short", watchdog=5.0):
        begin = time.monotonic()
    assert not any("short" in thread.name for thread in threading.enumerate())
    assert time.monotonic() - begin < 4


async def test_a_stop_that_comes_between_two_questions_is_not_taken_for_a_blocked_loop() -> None:
    """What the stop sets is not cleared away, to be waited for by a loop that waits for the thread."""

    class StoppedMeanwhile(threading.Event):
        """Is set by the stop at the very moment at which it is cleared."""

        clearing = threading.Event()

        def clear(self) -> None:
            self.clearing.set()
            assert self.wait(10)
            super().clear()

    async with System("between", watchdog=5.0) as system:
        assert system._watchdog is not None
        system._watchdog._answered = answered = StoppedMeanwhile()
        assert await asyncio.to_thread(answered.clearing.wait, 10)
        begin = time.monotonic()
    assert not any("between" in thread.name for thread in threading.enumerate())
    assert time.monotonic() - begin < 4
