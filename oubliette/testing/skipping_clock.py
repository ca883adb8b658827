"""SkippingClock, the machine's clock with jumps ahead.

For tests of whole systems: agents are processes and need real time, but a test does not wait an
hour for a deadline. It skips the hour, and the deadlines within it pass.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextvars import Context
from typing import TYPE_CHECKING, Final

from oubliette.errors import InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Callable

SKIP_SECONDS: Final = 30.0
"""Limit of one call of `skip` from another thread."""


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

    def skip(self, seconds: float) -> None:
        """Jump ahead; calls that become due are made, in the order of their times.

        May be called from any thread, and returns when they were made.

        Raises:
            InvalidParameter: the seconds are not positive: time does not go back.
        """
        if not seconds > 0:
            raise InvalidParameter(
                f"skip: {seconds} s; time only goes ahead: give more than 0", field="seconds"
            )
        loop = self._loop
        if loop is None or loop.is_closed() or _is_running_here(loop):
            self._jump(seconds)
            return
        done = threading.Event()
        raised: list[BaseException] = []

        def jump() -> None:
            try:
                self._jump(seconds)
            except BaseException as error:
                raised.append(error)
            finally:
                done.set()

        loop.call_soon_threadsafe(jump)
        if not done.wait(SKIP_SECONDS):
            raise TimeoutError(f"the event loop made no jump within {SKIP_SECONDS:g} s")
        for error in raised:
            raise error

    def _jump(self, seconds: float) -> None:
        self._skipped += seconds
        now = self.monotonic()
        due = sorted((each for each in self._timers if each.due <= now), key=lambda one: one.due)
        for timer in due:
            timer.fire()
        if self._loop is not None and not self._loop.is_closed():
            for timer in list(self._timers):
                self._set(timer, self._loop)

    def _set(self, timer: SkippingTimer, loop: asyncio.AbstractEventLoop) -> None:
        if timer.handle is not None:
            timer.handle.cancel()
        delay = max(timer.due - self.monotonic(), 0.0)
        timer.handle = loop.call_later(delay, timer.fire, context=Context())


def _is_running_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
