"""SkippingClock, the machine's clock with jumps ahead.

For tests of whole systems: agents are processes and need real time, but a test does not wait an
hour for a deadline. It skips the hour, and the deadlines within it pass.
"""

from __future__ import annotations

import asyncio
import time
from contextvars import Context
from typing import TYPE_CHECKING, Final

from oubliette.errors import Conflict, InvalidParameter
from oubliette.testing.clock import SETTLE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SKIP_SECONDS: Final = 60.0
"""Limit of one call of `skip_blocking`."""
PACE: Final = 0.01
"""Seconds of the machine that agents have, at least, between deadlines that lie apart."""
MOMENT: Final = 0.001
"""Seconds within which deadlines count as one moment."""
DRAINS: Final = 3
"""Times that tasks run, and the work of other threads is awaited, before time goes on."""


class SkippingTimer:
    """Pending call of a SkippingClock; made by `call_later`."""

    __slots__ = ("_callback", "_clock", "due", "handle")

    def __init__(self, clock: SkippingClock, due: float, callback: Callable[[], object]) -> None:
        self._clock = clock
        self._callback: Callable[[], object] | None = callback
        self.due: Final = due
        """Second of the clock's `monotonic`."""
        self.handle: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        """Cancel the call; no effect once it was made."""
        self._callback = None
        if self.handle is not None:
            self.handle.cancel()
        self._clock.forget(self)

    def fire(self) -> None:
        """Make the call, once."""
        callback, self._callback = self._callback, None
        if self.handle is not None:
            self.handle.cancel()
        self._clock.forget(self)
        if callback is not None:
            callback()


class SkippingClock:
    """`Clock` that runs with the machine's, and jumps ahead when a test skips time.

    One event loop uses it: the one of its first `call_later`.
    """

    def __init__(self) -> None:
        self._skipped = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timers: dict[SkippingTimer, None] = {}
        self._barrier: Callable[[], Awaitable[None]] | None = None
        self._skipping = asyncio.Lock()

    @property
    def skipped(self) -> float:
        """Seconds that were skipped so far."""
        return self._skipped

    @property
    def pending(self) -> int:
        """Number of pending calls."""
        return len(self._timers)

    def monotonic(self) -> float:
        """Return the seconds of `time.monotonic`, and those that were skipped."""
        return time.monotonic() + self._skipped

    def time(self) -> float:
        """Return the seconds of `time.time`, and those that were skipped."""
        return time.time() + self._skipped

    def call_later(self, delay: float, callback: Callable[[], object]) -> SkippingTimer:
        """Call `callback` on the running loop after `delay` seconds, skipped ones included."""
        self._loop = asyncio.get_running_loop()
        timer = SkippingTimer(self, self.monotonic() + delay, callback)
        self._timers[timer] = None
        self._set(timer, self._loop)
        return timer

    def forget(self, timer: SkippingTimer) -> None:
        """Drop a timer that was fired or cancelled; for the timers."""
        self._timers.pop(timer, None)

    def drain_with(self, barrier: Callable[[], Awaitable[None]] | None) -> None:
        """Await `barrier` in each drain, too: it returns when work outside the loop is done."""
        self._barrier = barrier

    async def skip(self, seconds: float) -> None:
        """Jump ahead, from deadline to deadline; calls that become due are made in their order.

        After each call tasks run, and agents get a moment to answer, before a later one is made. So
        an answer that takes no time is in time. An agent that works longer misses its deadlines.

        Raises:
            InvalidParameter: the seconds are not positive: time does not go back.
        """
        if not seconds > 0:
            raise InvalidParameter(
                f"skip: {seconds} s; time only goes ahead: give more than 0", field="seconds"
            )
        loop = self._loop
        if loop is None or loop.is_closed() or loop is asyncio.get_running_loop():
            await self._skip(seconds)
        else:
            running = asyncio.run_coroutine_threadsafe(self._skip(seconds), loop)
            await asyncio.wrap_future(running)

    def skip_blocking(self, seconds: float) -> None:
        """Jump ahead as `skip` does, from a thread that runs no event loop.

        Raises:
            Conflict: this thread runs a loop, which may be the one that has to make the calls.
            InvalidParameter: the seconds are not positive.
            TimeoutError: the jump took longer than 60 s.
        """
        if _runs_a_loop():
            raise Conflict(
                "skip_blocking on a thread that runs an event loop", hint="await clock.skip(...)"
            )
        loop = self._loop
        if loop is None or loop.is_closed():
            asyncio.run(self.skip(seconds))
            return
        running = asyncio.run_coroutine_threadsafe(self.skip(seconds), loop)
        try:
            running.result(SKIP_SECONDS)
        finally:
            running.cancel()

    async def _skip(self, seconds: float) -> None:
        async with self._skipping:
            end = self._skipped + seconds
            try:
                await self._drain()
                while (timer := self._next()) is not None:
                    ahead = timer.due - self.monotonic()
                    if self._skipped + ahead > end:
                        break
                    if ahead > MOMENT:
                        # The agents' time is the machine's.
                        await asyncio.sleep(min(ahead, PACE))
                        if timer is not self._next():
                            continue  # cancelled, or something is due earlier
                    self._skipped += max(timer.due - self.monotonic(), 0.0)
                    timer.fire()
                    await self._drain()
                self._skipped = end
            finally:
                self._set_all()
            await self._drain()

    def _next(self) -> SkippingTimer | None:
        return min(self._timers, key=lambda each: each.due, default=None)

    async def _drain(self) -> None:
        """Run tasks, and await the work that they give to other threads."""
        for _ in range(1 if self._barrier is None else DRAINS):
            for _ in range(SETTLE):
                await asyncio.sleep(0)
            if self._barrier is not None:
                await self._barrier()

    def _set_all(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            for timer in list(self._timers):
                self._set(timer, self._loop)

    def _set(self, timer: SkippingTimer, loop: asyncio.AbstractEventLoop) -> None:
        if timer.handle is not None:
            timer.handle.cancel()
        delay = max(timer.due - self.monotonic(), 0.0)
        timer.handle = loop.call_later(delay, timer.fire, context=Context())


def _runs_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
