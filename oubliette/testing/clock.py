"""Clock that moves only when a test moves it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SETTLE = 50
"""Rounds of the loop in which `elapse` lets the tasks started by a timer run."""


class VirtualTimer:
    """Pending call; made by `VirtualClock.call_later`."""

    __slots__ = ("_callback",)

    def __init__(self, callback: Callable[[], object]) -> None:
        self._callback: Callable[[], object] | None = callback

    @property
    def pending(self) -> bool:
        """Whether the call is still pending."""
        return self._callback is not None

    def cancel(self) -> None:
        """Cancel the call; no effect once it was made."""
        self._callback = None

    def fire(self) -> None:
        """Make the call, once."""
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class VirtualClock:
    """`Clock` for tests: time stands still between calls of `advance` and `elapse`.

    Args:
        start: monotonic seconds at the beginning.
        wall: seconds since 1970-01-01 UTC at the beginning.
    """

    def __init__(self, start: float = 1000.0, wall: float = 1_800_000_000.0) -> None:
        self._now = start
        self._wall_offset = wall - start
        self._timers: list[tuple[float, int, VirtualTimer]] = []
        self._order = itertools.count()

    def monotonic(self) -> float:
        """Return the seconds; only this clock's own methods move it."""
        return self._now

    def time(self) -> float:
        """Return the seconds since 1970-01-01 UTC; moves with `monotonic`, and by `set_wall`."""
        return self._now + self._wall_offset

    def set_wall(self, seconds: float) -> None:
        """Set the wall clock, as an administrator or NTP may."""
        self._wall_offset = seconds - self._now

    def call_later(self, delay: float, callback: Callable[[], object]) -> VirtualTimer:
        """Call `callback` when this clock has moved by `delay` seconds."""
        timer = VirtualTimer(callback)
        due = self._now + max(delay, 0.0)
        heapq.heappush(self._timers, (due, next(self._order), timer))
        return timer

    @property
    def pending(self) -> int:
        """Number of pending calls."""
        return sum(timer.pending for _, _, timer in self._timers)

    def next_due(self) -> float | None:
        """Return the seconds until the next call; None if there is none."""
        while self._timers and not self._timers[0][2].pending:
            heapq.heappop(self._timers)
        return self._timers[0][0] - self._now if self._timers else None

    def advance(self, seconds: float) -> None:
        """Move by `seconds` and make the calls that become due, in order, each at its time."""
        end = self._now + seconds
        while self._step(end):
            pass
        self._now = end

    async def elapse(self, seconds: float) -> None:
        """Move as `advance` does, but run tasks after each call, and before the first."""
        end = self._now + seconds
        await _settle()
        while self._step(end):
            await _settle()
        self._now = end
        await _settle()

    def _step(self, end: float) -> bool:
        wait = self.next_due()
        if wait is None or self._now + wait > end:
            return False
        due, _, timer = heapq.heappop(self._timers)
        self._now = max(self._now, due)
        timer.fire()
        return True


async def _settle() -> None:
    for _ in range(SETTLE):
        await asyncio.sleep(0)
