"""Iterators over the events of a session: classes with a cursor, never generators.

An iterator holds no task and no connection of its own between two events, so it may be left at any
moment (`break`), used by another task, and continued later from its cursor.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from oubliette.api.connection import POLL_MARGIN, POLL_SECONDS
from oubliette.api.events.cursors import EventCursor, page_of
from oubliette.api.events.decoding import decode_event
from oubliette.contract.events import LargeEvent, Status

if TYPE_CHECKING:
    from oubliette.api.connection import CallsTools
    from oubliette.api.events.turn_result import TurnFold
    from oubliette.contract.events import Event

FINISHED: Final = frozenset({"completed", "failed", "timed_out"})
"""Statuses of a session that has no agent any more."""


class EventIterator:
    """Asynchronous iterator over the events of one session.

    It ends when no turn runs or waits, with `follow` only when the session has finished. Of several
    tasks that iterate it at once, each gets other events.
    """

    def __init__(
        self,
        connection: CallsTools,
        session_id: str,
        *,
        after: int = -1,
        follow: bool = False,
    ) -> None:
        """Begin after an event.

        Args:
            connection: To the system.
            session_id: Id of the session.
            after: Index of the last event that is known; -1 is the beginning of the log.
            follow: Whether to wait for further turns.
        """
        self._connection = connection
        self._session_id = session_id
        self._cursor = EventCursor(after)
        self._from_start = after < 0
        self._follow = follow
        self._ready: deque[Event] = deque()
        self._returned = after
        self._over = False
        self._reading = asyncio.Lock()  # two reads from one place would return its events twice

    @property
    def cursor(self) -> int:
        """Index of the last event that was returned: `after` of an iterator that continues here."""
        return self._returned

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> Event:
        """Return the next event; wait for it as long as more may come.

        Raises:
            EventsMissing: the next events were deleted.
            NotFound: there is no such session.
        """
        async with self._reading:
            while not self._ready:
                if self._over:
                    raise StopAsyncIteration
                await self._read()
            event = self._ready.popleft()
            self._returned = event.index
            return event

    async def _read(self) -> None:
        """Wait for the next page. Cancelled half way, it leaves the place as it was."""
        cursor = EventCursor(self._cursor.after)
        page = page_of(
            await self._connection.call(
                "session_events",
                {
                    "session_id": self._session_id,
                    "since_index": self._cursor.after,
                    "wait_seconds": POLL_SECONDS,
                },
                timeout=POLL_SECONDS + POLL_MARGIN,
            )
        )
        if self._from_start and page.truncated_before is not None:
            # Who asks for all there is gets what there is.
            cursor.skip_to(page.truncated_before)
        ready = [await whole(self._connection, event) for event in cursor.take(page)]
        self._from_start = False
        self._cursor = cursor
        self._ready.extend(ready)
        finished = page.status in FINISHED and not page.more
        self._over = finished or (page.completed and not self._follow)


class TurnEvents:
    """Asynchronous iterator over the events of one turn; the last is its completion."""

    def __init__(
        self, connection: CallsTools, session_id: str, fold: TurnFold, *, after: int
    ) -> None:
        """Begin after the event that was the last when the message was sent.

        Args:
            connection: To the system.
            session_id: Id of the session.
            fold: Takes the events of its turn.
            after: Index of the last event before the message.
        """
        self._events = EventIterator(connection, session_id, after=after, follow=True)
        self._fold = fold
        self._reading = asyncio.Lock()  # behind the last event nothing is waited for

    @property
    def cursor(self) -> int:
        """Index of the last event of the session that was read."""
        return self._events.cursor

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> Event:
        """Return the next event of the turn.

        Raises:
            EventsMissing: events of the turn were deleted.
        """
        async with self._reading:
            while not self._fold.done:
                event = await anext(self._events)
                if self._fold.add(event):
                    return event
                if isinstance(event, Status) and self._fold.done:
                    return event
            raise StopAsyncIteration


async def whole(connection: CallsTools, event: Event) -> Event:
    """Return an event that was sent by reference as a whole; others as they are."""
    if not isinstance(event, LargeEvent):
        return event
    pieces: list[str] = []
    offset: int | None = 0
    while offset is not None:
        piece = await connection.call(
            "event_read",
            {"session_id": event.session_id, "index": event.index, "offset": offset},
        )
        pieces.append(piece["data"])
        offset = piece["next_offset"]
    data: dict[str, Any] = msgspec.json.decode("".join(pieces))
    return decode_event(data)
