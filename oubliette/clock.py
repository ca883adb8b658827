"""Clocks behind a port, so that tests can advance the time."""

from __future__ import annotations

import asyncio
import time
from contextvars import Context
from typing import TYPE_CHECKING, Final, Protocol

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


LATE_SECONDS: Final = 1.0
"""Lateness of a timer after which this process is taken to have been stopped."""
CATCH_UP_SECONDS: Final = 0.25
"""Time for what has arrived meanwhile, and lies in sockets, before a deadline counts."""


class _SystemTimer:
    """A pending call of `SystemClock.call_later`.

    A process that was stopped (a debugger, a frozen control group, a paused machine) finds its
    deadlines passed when it goes on, and the answers that came in time still unread.
    """

    __slots__ = ("_callback", "_caught_up", "_handle")

    def __init__(self, delay: float, callback: Callable[[], object]) -> None:
        self._callback: Callable[[], object] | None = callback
        self._caught_up = False
        self._handle: asyncio.TimerHandle | None = self._begun(delay)

    def cancel(self) -> None:
        self._callback = None  # it leads to what keeps this timer: no work for the collector
        if self._handle is not None:
            self._handle.cancel()

    def _begun(self, delay: float) -> asyncio.TimerHandle:
        # In an empty context: the loop keeps that of a cancelled timer, and with it the actor that
        # set it, until the timer would have fired.
        return asyncio.get_running_loop().call_later(delay, self._fire, context=Context())

    def _fire(self) -> None:
        handle, self._handle = self._handle, None  # each has the other
        late = 0.0 if handle is None else asyncio.get_running_loop().time() - handle.when()
        if late > LATE_SECONDS and not self._caught_up:
            self._caught_up = True
            self._handle = self._begun(CATCH_UP_SECONDS)
        elif (callback := self._callback) is not None:
            self._callback = None
            callback()


class SystemClock:
    """The machine's clocks and the running loop's timers."""

    def monotonic(self) -> float:
        """The seconds of `time.monotonic`."""
        return time.monotonic()

    def time(self) -> float:
        """The seconds of `time.time`."""
        return time.time()

    def call_later(self, delay: float, callback: Callable[[], object]) -> TimerHandle:
        """Use the running loop's `call_later`; see `_SystemTimer` for one that comes late."""
        return _SystemTimer(delay, callback)
