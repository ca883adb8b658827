"""Moment from which a server that has started can serve callers: their time begins then."""

from __future__ import annotations

import asyncio
import math


class CallersServed:
    """Moment from which callers can be served; `begin` is called once, by the part that serves.

    Args:
        since: Monotonic second of that moment, if it has come already.
    """

    def __init__(self, since: float = math.inf) -> None:
        self.since = since
        """Monotonic second; infinite until the moment has come."""
        self._begun = asyncio.Event()

    def begin(self, now: float) -> None:
        """Record that callers can be served from now on, a monotonic second."""
        if math.isinf(self.since):
            self.since = now
            self._begun.set()

    async def wait(self) -> None:
        """Return once callers can be served; a server for which that never comes ends."""
        if math.isinf(self.since):
            await self._begun.wait()
