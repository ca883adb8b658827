"""Queries of the store that callers use."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oubliette.records import CallerRequest, Event, PermissionRequest
    from oubliette.runtime.store.reader import Reader


async def open_requests(
    reader: Reader, principal: str, caller_id: str
) -> list[CallerRequest | PermissionRequest]:
    """The calls and questions to this caller that have no answer."""
    return [
        *await reader.open_requests(principal=principal, caller_id=caller_id),
        *await reader.open_permissions(principal, caller_id),
    ]


async def events_of(
    reader: Reader, requests: Iterable[CallerRequest | PermissionRequest], head: int
) -> list[Event]:
    """Return the events of these requests up to the seq `head`, in seq order; none for 0."""
    found: list[Event] = []
    for request in requests if head else ():
        event = await reader.event(request.session_id, request.event_index)
        if event is not None and event.seq <= head:
            found.append(event.sendable())
    found.sort(key=lambda event: event.seq)
    return found
