"""Idle timeout: a session without activity for `sessions.idle_timeout_seconds` ends."""

from __future__ import annotations

from typing import Final

from oubliette.actors.session.session_end import EndOfSession
from oubliette.kit import Message

RUNNING_CHECK: Final = 60.0
"""Seconds between checks, at most the timeout itself, of a session that is busy."""


class IdleCheck(Message):
    """Time to check whether the session was inactive for too long."""


class IdleTimeout:
    """Time since the last activity of one session; `now` is a monotonic second in all methods."""

    __slots__ = ("_last", "_limit")

    def __init__(self, limit: float) -> None:
        """Begin without activity; `limit` is `sessions.idle_timeout_seconds`."""
        self._limit = limit
        self._last = 0.0

    def active(self, now: float) -> None:
        """Record activity: the session is not idle."""
        self._last = now

    def since(self, now: float) -> float:
        return now - self._last

    def left(self, now: float, *, busy: bool) -> float:
        """Return the seconds until the next `IdleCheck`; 0 or less if the session is to end.

        It is not idle while it is `busy`: a turn runs, or waits for a container or an agent that
        takes longer to start than the timeout.
        """
        left = self._last + self._limit - now
        if busy:
            left = max(left, min(self._limit, RUNNING_CHECK))
        return left

    @property
    def end(self) -> EndOfSession:
        """The end of a session that was idle for too long."""
        return EndOfSession("idled_out", "timed_out", f"idle for {self._limit:.0f} seconds")
