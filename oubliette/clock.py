"""Clocks behind a port, so that tests can advance the time."""

from __future__ import annotations

import asyncio
import time
from contextvars import Context
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class TimerHandle(Protocol):
    """Handle of a pending call of `Clock.call_later`."""

    def cancel(self) -> None:
        """Cancel the call; no effect once it was made."""
        ...


class Clock(Protocol):
    """Source of monotonic time for deadlines and wall time for records, both in seconds."""

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary start; never decreases."""
        ...

    def time(self) -> float:
        """Return the seconds since 1970-01-01 UTC; may jump."""
        ...

    def call_later(self, delay: float, callback: Callable[[], object]) -> TimerHandle:
        """Call `callback` on the running loop after `delay` seconds."""
        ...


class SystemClock:
    """The machine's clocks and the running loop's timers."""

    def monotonic(self) -> float:
        """The seconds of `time.monotonic`."""
        return time.monotonic()

    def time(self) -> float:
        """The seconds of `time.time`."""
        return time.time()

    def call_later(self, delay: float, callback: Callable[[], object]) -> TimerHandle:
        """Use the running loop's `call_later`.

        `callback` runs in an empty context: the loop keeps the context of a cancelled timer, and
        with it the actor that set it, until the timer would have fired.
        """
        return asyncio.get_running_loop().call_later(delay, callback, context=Context())
