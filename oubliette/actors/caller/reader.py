"""Queries of the store that callers use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oubliette.records import CallerRequest, Event, PermissionRequest, Session


class CallerReader(Protocol):
    """The part of the store's reader that callers need."""

    async def last_seq(self) -> int: ...

    async def caller_events(
        self, principal: str, caller_id: str, after_seq: int, limit: int, max_bytes: int
    ) -> list[Event]:
        """Return events of a caller in seq order; at least one if there is any."""
        ...

    async def open_requests(
        self, *, principal: str | None = None, caller_id: str | None = None
    ) -> list[CallerRequest]:
        """The requests without an outcome."""
        ...

    async def open_permissions(self, principal: str, caller_id: str) -> list[PermissionRequest]: ...

    async def event(self, session_id: str, index: int) -> Event | None: ...

    async def session(self, session_id: str) -> Session | None: ...


async def open_requests(
    reader: CallerReader, principal: str, caller_id: str
) -> list[CallerRequest | PermissionRequest]:
    """The calls and questions to this caller that have no answer."""
    return [
        *await reader.open_requests(principal=principal, caller_id=caller_id),
        *await reader.open_permissions(principal, caller_id),
    ]


async def events_of(
    reader: CallerReader, requests: Iterable[CallerRequest | PermissionRequest], head: int
) -> list[Event]:
    """Return the events of these requests up to the seq `head`, in seq order; none for 0."""
    found: list[Event] = []
    for request in requests if head else ():
        event = await reader.event(request.session_id, request.event_index)
        if event is not None and event.seq <= head:
            found.append(event.sendable())
    found.sort(key=lambda event: event.seq)
    return found
