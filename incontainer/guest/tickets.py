"""One-time tickets, by which a data link proves that the control link's owner opened it."""

from __future__ import annotations

import os
import time

from ..wire import TICKET_SECONDS

PURPOSES = ("upstream", "attach", "bare", "connect")
OUTSTANDING = 4096  # tickets neither used nor expired; the oldest are dropped first


class Tickets:
    """Issuer of tickets, each of which is redeemed once, for the purpose it was issued for."""

    def __init__(self) -> None:
        self._issued: dict[str, tuple[str, float]] = {}

    def issue(self, purpose: str, count: int) -> list[str]:
        """Return `count` new tickets, valid for `TICKET_SECONDS`."""
        now = time.monotonic()
        for ticket, (_, until) in list(self._issued.items()):
            # Insertion order is expiry order: stop at the first valid one
            if until > now and len(self._issued) + count <= OUTSTANDING:
                break
            del self._issued[ticket]
        fresh = [os.urandom(16).hex() for _ in range(count)]
        for ticket in fresh:
            self._issued[ticket] = (purpose, now + TICKET_SECONDS)
        return fresh

    def redeem(self, ticket: str, *purposes: str) -> str | None:
        """Invalidate the ticket; return its purpose if valid for one of `purposes`, else None."""
        purpose, until = self._issued.pop(ticket, ("", 0.0))
        return purpose if purpose in purposes and time.monotonic() < until else None

    def clear(self) -> None:
        """Invalidate all outstanding tickets: another server has taken over."""
        self._issued.clear()
