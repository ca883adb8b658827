"""Pages of a session's log, for clients and for agents, with or without a wait for news."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from oubliette.actors.messages import ReadEvents
from oubliette.errors import NotFound, Unavailable
from oubliette.kit import ActorDead
from oubliette.runtime.store.codec import decode_payload

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from oubliette.actors.messages import SessionEvents
    from oubliette.clock import Clock
    from oubliette.contract.session_tools import EventsParams
    from oubliette.kit import Message
    from oubliette.records import Event, Session
    from oubliette.runtime.store.connection import StoreConnection
    from oubliette.runtime.store.reader import Reader

ASK_MARGIN: Final = 10.0
"""Seconds that an actor gets beyond the wait itself."""


@dataclass(frozen=True, kw_only=True)
class EventPage:
    """Events of a session, or of the tree below it, and the state that they lead to."""

    session: Session
    events: tuple[Event, ...] | list[Event]
    last_index: int
    """Value of since_index that continues here."""
    more: bool
    """Whether the log has more events already."""
    truncated_before: int | None
    turn_over: bool
    """Whether no turn runs or waits."""
    live: bool
    """Whether a wait may bring more."""

    @property
    def completed(self) -> bool:
        """Whether the last turn is over, and this page has the end of the log."""
        return self.turn_over and not self.more and self.session.turn_count > 0

    @property
    def failed(self) -> bool:
        """Whether the session itself has failed."""
        return self.session.status == "failed"


class AskSession(Protocol):
    """Function that asks a live session, and its successor while it is being restarted."""

    async def __call__(self, session_id: str, message: Message, timeout: float, /) -> Any: ...


async def long_poll(
    clock: Clock,
    seconds: float,
    slice_seconds: float,
    read: Callable[[float], Awaitable[EventPage]],
) -> EventPage:
    """The first page of `read` with events, else the last one when the time is over.

    `read` gets the seconds that it may wait. It is called in slices of `slice_seconds`, so that a
    restarted actor is found again.
    """
    until = clock.monotonic() + seconds
    while True:
        left = until - clock.monotonic()
        page = await read(max(0.0, min(left, slice_seconds)))
        if page.events or left <= 0 or not page.live:
            return page


async def read_page(
    reader: Reader,
    ask: AskSession,
    chosen: EventsParams,
    *,
    max_bytes: int,
    wait: float,
    whole_bytes: int | None = None,
) -> EventPage:
    """A page of one session: from its actor if it is live, else from the store.

    Stored events of more than `whole_bytes` come as a reference.

    Raises:
        NotFound: there is no such session.
    """
    reading = ReadEvents(
        since_index=chosen.since_index,
        max_events=chosen.max_events,
        max_bytes=max_bytes,
        wait_seconds=wait,
        whole_bytes=whole_bytes,
    )
    try:
        found: SessionEvents = await ask(chosen.session_id, reading, wait + ASK_MARGIN)
    except (ActorDead, NotFound, Unavailable):
        return await _stored_page(reader, chosen, max_bytes, whole_bytes)
    return EventPage(
        session=found.session,
        events=found.events,
        last_index=found.last_index,
        more=found.last_index < found.log_end and bool(found.events),
        truncated_before=found.truncated_before,
        turn_over=found.turn_done,
        live=True,
    )


async def _stored_page(
    reader: Reader, chosen: EventsParams, max_bytes: int, whole_bytes: int | None
) -> EventPage:
    session, turn_over = await stored_state(reader, chosen.session_id)
    log = await reader.log(
        chosen.session_id, chosen.since_index, chosen.max_events, max_bytes, whole_bytes
    )
    return EventPage(
        session=session,
        events=log.events,
        last_index=log.events[-1].index if log.events else chosen.since_index,
        more=log.more,
        truncated_before=log.truncated_before,
        turn_over=turn_over,
        live=False,
    )


async def stored_state(reader: Reader, session_id: str) -> tuple[Session, bool]:
    """Return the session, and whether the store has no running or queued turn of it.

    Raises:
        NotFound: there is no such session.
    """
    open_turns = await reader.turns(session_id, ("queued", "running"))
    session = await reader.session(session_id)
    if session is None:
        raise NotFound(f"session {session_id} not found", hint="session_list shows the sessions")
    return session, not open_turns


async def error_of(reader: Reader, page: EventPage) -> str | None:
    """Return why the session of a page failed, or its last turn if that is completed."""
    session = page.session
    error = session.status_reason if session.status in {"failed", "timed_out"} else None
    if not page.completed or error is not None:
        return error
    turn = await reader.turn(session.id, session.turn_count)
    if turn is None or turn.outcome != "failed":
        return None
    return await reader.run(_last_error, session.id) or turn.result or "the turn failed"


def _last_error(connection: StoreConnection, session_id: str) -> str | None:
    """The message of a session's newest `error` event."""
    row = connection.execute(
        "SELECT data FROM events WHERE session_id = ? AND type = 'error' ORDER BY idx DESC LIMIT 1",
        (session_id,),
    ).fetchone()
    message = decode_payload(row[0]).get("message") if row else None
    return message if isinstance(message, str) else None
