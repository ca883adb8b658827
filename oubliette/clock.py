"""Time behind a port, so that tests can move it."""

from __future__ import annotations

import asyncio
import time
from contextvars import Context
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class TimerHandle(Protocol):
    """What `Clock.call_later` returns."""

    def cancel(self) -> None:
        """Take the call back; does nothing once it was made."""
        ...


class Clock(Protocol):
    """Monotonic time for deadlines, wall time for records. Seconds, both."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...

    def time(self) -> float:
        """Seconds since 1970-01-01 UTC; may jump."""
        ...

    def call_later(self, delay: float, callback: Callable[[], object]) -> TimerHandle:
        """Call `callback` on the running loop after `delay` seconds."""
        ...


class SystemClock:
    """The machine's clocks and the running loop's timers."""

    def monotonic(self) -> float:
        """Seconds of `time.monotonic`."""
        return time.monotonic()

    def time(self) -> float:
        """Seconds of `time.time`."""
        return time.time()

    def call_later(self, delay: float, callback: Callable[[], object]) -> TimerHandle:
        """Use the running loop's `call_later`.

        `callback` runs in an empty context: the loop keeps the context of a timer that was
        cancelled, and with it the actor that set it, until its time comes.
        """
        return asyncio.get_running_loop().call_later(delay, callback, context=Context())
