"""What callers read of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from oubliette.records import CallerRequest, Event, PermissionRequest, Session


class CallerReader(Protocol):
    """The part of the store's reader that callers need."""

    async def last_seq(self) -> int:
        """Seq of the newest event."""
        ...

    async def caller_events(
        self, principal: str, caller_id: str, after_seq: int, limit: int, max_bytes: int
    ) -> list[Event]:
        """Events of a caller in seq order; at least one if there is any."""
        ...

    async def open_requests(
        self, *, principal: str | None = None, caller_id: str | None = None
    ) -> list[CallerRequest]:
        """Requests without an outcome."""
        ...

    async def open_permissions(self, principal: str, caller_id: str) -> list[PermissionRequest]:
        """What it is asked for and has not decided."""
        ...

    async def event(self, session_id: str, index: int) -> Event | None:
        """One event."""
        ...

    async def session(self, session_id: str) -> Session | None:
        """One session."""
        ...
