"""How often a principal may call: a token bucket for each.

One principal's flood must not slow another's calls: what is over the rate is refused before
anything is done for it, at both doors.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from oubliette.errors import RateLimited

if TYPE_CHECKING:
    from oubliette.clock import Clock

MAX_KNOWN: Final = 4096
"""Principals whose buckets are remembered; of those that are full nothing need be known."""


class RateLimits:
    """`rate` calls a second for each principal, `burst` at once."""

    def __init__(self, rate: float, burst: int, clock: Clock) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}
        """Principal → calls that were left, and when (monotonic second)."""

    def take(self, principal: str) -> None:
        """Count one call.

        Raises:
            RateLimited: there were too many; says when to try again.
        """
        now = self._clock.monotonic()
        left = self._left(principal, now)
        if left < 1.0:
            self._buckets[principal] = (left, now)
            wait = (1.0 - left) / self._rate
            raise RateLimited(
                f"too many calls: {self._rate:g} a second are allowed, {self._burst:.0f} at once"
                " (callers.calls_per_second, callers.calls_burst)",
                hint=f"try again in {max(wait, 0.001):.3f} s",
                retry_after=max(1, math.ceil(wait)),
            )
        if principal not in self._buckets and len(self._buckets) >= MAX_KNOWN:
            self._forget(now)
        self._buckets[principal] = (left - 1.0, now)

    def _left(self, principal: str, now: float) -> float:
        left, at = self._buckets.get(principal, (self._burst, now))
        return min(self._burst, left + (now - at) * self._rate)

    def _forget(self, now: float) -> None:
        """Drop full buckets; if there are none, all: then somebody makes principals to flood us."""
        full = [name for name in self._buckets if self._left(name, now) >= self._burst]
        for name in full or list(self._buckets):
            del self._buckets[name]
