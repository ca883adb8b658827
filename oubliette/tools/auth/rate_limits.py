"""Rate limits of principals: a token bucket for each.

The calls of one principal must not slow those of another: calls above the rate are refused before
any work is done for them, over HTTP and on agents' links.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from oubliette.errors import RateLimited

if TYPE_CHECKING:
    from oubliette.clock import Clock

MAX_KNOWN: Final = 4096
"""Maximum of principals with a bucket; a full bucket need not be kept."""


class RateLimits:
    """Limit of `rate` calls a second for each principal, with bursts of `burst`."""

    def __init__(self, rate: float, burst: int, clock: Clock) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}
        """Principal → calls that were left, and at which monotonic second."""

    def take(self, principal: str) -> None:
        """Count one call.

        Raises:
            RateLimited: there were too many; `retry_after` is set.
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
        """Drop full buckets; if there are none, all: principals are being created to flood us."""
        full = [name for name in self._buckets if self._left(name, now) >= self._burst]
        for name in full or list(self._buckets):
            del self._buckets[name]
