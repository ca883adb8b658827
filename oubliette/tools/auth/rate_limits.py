"""Rate limits of principals: a token bucket for each.

The calls of one principal must not slow those of another: calls above the rate are refused before
any work is done for them, over HTTP and on agents' links. On a node of a cluster the principal has
one bucket for all nodes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from oubliette.actors.shares import ShareLimit
from oubliette.errors import RateLimited

if TYPE_CHECKING:
    from oubliette.actors.shares import Shares
    from oubliette.clock import Clock

MAX_KNOWN: Final = 4096
"""Maximum of principals with a bucket; a full bucket need not be kept."""


class RateLimits:
    """Limit of `rate` calls a second for each principal, with bursts of `burst`.

    Args:
        rate: Calls a second.
        burst: Calls at once.
        clock: Time of the buckets.
        shares: Counts the calls of all nodes; None: there are no others.
    """

    def __init__(self, rate: float, burst: int, clock: Clock, shares: Shares | None = None) -> None:
        self._shares = shares
        self._shared = ShareLimit(most=burst, rate=rate)
        self._rate = rate
        self._burst = float(burst)
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}
        """Principal → calls that were left, and at which monotonic second."""

    async def take(self, principal: str) -> None:
        """Count one call.

        Raises:
            RateLimited: there were too many; `retry_after` is set.
        """
        if self._shares is None:
            wait = self._take(principal)
        else:
            wait = await self._shares.take(f"rate:{principal}", self._shared)
        if wait is not None:
            raise RateLimited(
                f"too many calls: {self._rate:g} a second are allowed, {self._burst:.0f} at once"
                " (callers.calls_per_second, callers.calls_burst)",
                hint=f"try again in {max(wait, 0.001):.3f} s",
                retry_after=max(1, math.ceil(wait)),
            )

    def _take(self, principal: str) -> float | None:
        """Count one call in its bucket here; return None, or the seconds until there is room."""
        now = self._clock.monotonic()
        left = self._left(principal, now)
        if left < 1.0:
            self._buckets[principal] = (left, now)
            return (1.0 - left) / self._rate
        if principal not in self._buckets and len(self._buckets) >= MAX_KNOWN:
            self._forget(now)
        self._buckets[principal] = (left - 1.0, now)
        return None

    def _left(self, principal: str, now: float) -> float:
        left, at = self._buckets.get(principal, (self._burst, now))
        return min(self._burst, left + (now - at) * self._rate)

    def _forget(self, now: float) -> None:
        """Drop full buckets; if there are none, all: principals are being created to flood us."""
        full = [name for name in self._buckets if self._left(name, now) >= self._burst]
        for name in full or list(self._buckets):
            del self._buckets[name]
