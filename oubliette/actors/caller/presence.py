"""Whether a caller is there to answer: a rule on times, nothing else.

A stream is there until `stream_grace` after it dropped; a poller until `poll_grace` after its last
poll. A sign of life counts as a poll, but the drop of a stream counts for more than the signs
before it.
"""

from __future__ import annotations

import math


class CallerPresence:
    """Times are those of one monotonic clock, in seconds."""

    def __init__(self, stream_grace: float, poll_grace: float) -> None:
        self.stream_grace = stream_grace
        self.poll_grace = poll_grace
        self._until = -math.inf
        self._held: dict[str, bool] = {}
        """Lending listeners that are open, and whether each is a stream."""
        self.reason = "it never connected"
        """Why it is absent, when it is."""

    @property
    def known(self) -> bool:
        """Whether it was ever there, as far as this server knows."""
        return self.held or self._until > -math.inf

    @property
    def held(self) -> bool:
        """Whether a lending listener is open."""
        return bool(self._held)

    def until(self) -> float:
        """The time at which it is absent, infinite while a listener is open."""
        return math.inf if self._held else self._until

    def present(self, now: float) -> bool:
        """Whether it is there."""
        return now < self.until()

    def opened(self, listener: str, *, stream: bool) -> None:
        """A lending listener is open."""
        self._held[listener] = stream

    def superseded(self, listener: str) -> None:
        """A listener ended because a newer one is there: no sign of absence."""
        self._held.pop(listener, None)

    def closed(self, listener: str, now: float, *, orderly: bool) -> None:
        """A lending listener has ended; an `orderly` end lets it come back like a poller."""
        stream = self._held.pop(listener, None)
        if stream is None:
            return
        if stream and not orderly:
            self._until = now + self.stream_grace
            self.reason = "it disconnected"
        else:
            self._until = max(self._until, now + self.poll_grace)
            self.reason = "it stopped listening"

    def seen(self, now: float) -> None:
        """It gave a sign of life."""
        if not self.present(now):
            self.reason = "it does not listen for events"
        self._until = max(self._until, now + self.poll_grace)
