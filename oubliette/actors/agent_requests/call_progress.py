"""Progress of one call of a caller's tool: how often it is passed on, without I/O.

A message is passed on at once if the last one is a second old. Else it is held until then; a later
one takes its place. A message that is held when the call is settled is dropped: the outcome is news
enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from oubliette.kit import Message

MIN_SECONDS: Final = 1.0
"""Seconds between two messages of one call, at least."""


class ProgressDue(Message):
    """From the SessionActor to itself: the progress that is held for this call may be passed on."""

    request_id: str


@dataclass
class CallProgress:
    """Messages of one call; `now` is a wall second."""

    passed_at: float | None = None
    """Wall second at which the last message was passed on."""
    held: str | None = None
    """Newest message that waits."""

    def wait(self, message: str, now: float) -> float | None:
        """Take a message; return the seconds until `due` is to be called.

        0: pass it on now. None: it takes the place of one that waits already.
        """
        if self.held is not None:
            self.held = message
            return None
        if self.passed_at is None or not 0 <= now - self.passed_at < MIN_SECONDS:
            self.passed_at = now  # a wall clock that was set back delays nothing
            return 0.0
        self.held = message
        return MIN_SECONDS - (now - self.passed_at)

    def due(self, now: float) -> str | None:
        """Return the message that was held, to be passed on now; None: there is none."""
        message, self.held = self.held, None
        if message is not None:
            self.passed_at = now
        return message
