"""Idle timeout: a session without activity for `sessions.idle_timeout_seconds` ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oubliette.actors.session.session_end import EndOfSession
from oubliette.kit import Message

if TYPE_CHECKING:
    from oubliette.records import SessionStatus

RUNNING_CHECK: Final = 60.0
"""Seconds between checks, at most the timeout itself, while a turn runs: it is never idle."""


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
        """Return the seconds since the last activity."""
        return now - self._last

    def left(self, status: SessionStatus, now: float) -> float:
        """Return the seconds until the next `IdleCheck`; 0 or less if the session is to end."""
        left = self._last + self._limit - now
        if status == "running":
            left = max(left, min(self._limit, RUNNING_CHECK))
        return left

    @property
    def end(self) -> EndOfSession:
        """The end of a session that was idle for too long."""
        return EndOfSession("idled_out", "timed_out", f"idle for {self._limit:.0f} seconds")
