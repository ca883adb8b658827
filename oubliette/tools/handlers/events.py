"""Tools that read logs: `session_events`, `event_read`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta

from oubliette.actors.messages import ReadEvents
from oubliette.errors import NotFound, Unavailable
from oubliette.kit import ActorDead
from oubliette.tool_params import field_types
from oubliette.tool_params.base import Params
from oubliette.tool_params.session_tools import EventsParams
from oubliette.tools.event_queries import event_piece, last_error, tree_log
from oubliette.tools.handlers.sessions import visible_session
from oubliette.tools.schema import response_size
from oubliette.tools.schema.views import event_view
from oubliette.tools.services import session_not_found
from oubliette.tools.spec import Result, tool

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from oubliette.actors.messages import SessionEvents
    from oubliette.records import Event, Session
    from oubliette.tools.event_queries import TreeSlice
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext

MAX_PAGE: Final = response_size.MAX_PARTS
"""Maximum bytes of events that are read for one answer, which may contain fewer."""
MAX_PIECE: Final = 512 * field_types.KIB
"""Maximum bytes of one `event_read`; less if the message would be too large."""
ASK_MARGIN: Final = 10.0
"""Seconds that an actor gets beyond the wait itself."""


class SessionEventsParams(EventsParams, frozen=True, kw_only=True):
    """Parameters of `session_events`."""

    include_children: Annotated[
        bool,
        Meta(
            description="Include the whole tree below the session, in the order of commits;"
            " since_index and last_index are then values of seq."
        ),
    ] = False


class SessionEventsPage(Result, frozen=True, kw_only=True):
    """Result of `session_events`."""

    session_id: str
    status: str
    last_index: Annotated[int, Meta(description="Value of since_index in the next call.")]
    events: tuple[dict[str, Any], ...]
    completed: Annotated[
        bool, Meta(description="The last turn has ended, and this answer has the end of the log.")
    ]
    failed: Annotated[bool, Meta(description="The session has failed.")]
    error: Annotated[str | None, Meta(description="Why the session or its last turn failed.")]
    final_response: Annotated[
        str | None, Meta(description="The last turn's answer, once completed.")
    ]
    truncated_before: Annotated[
        int | None, Meta(description="Older events were deleted; this is the first one kept.")
    ]
    more: Annotated[bool, Meta(description="There are more events already; call again.")]


class EventRead(Params, frozen=True, kw_only=True):
    """Parameters of `event_read`."""

    session_id: Annotated[field_types.SessionId, Meta(description="Id of the session.")]
    index: Annotated[int, Meta(ge=0, le=2**53, description="Index of the event.")]
    offset: Annotated[
        int, Meta(ge=0, le=2**53, description="next_offset of the previous piece.")
    ] = 0


class EventPiece(Result, frozen=True, kw_only=True):
    """Result of `event_read`."""

    data: Annotated[str, Meta(description="A piece of the event's JSON text.")]
    next_offset: Annotated[int | None, Meta(description="null after the last piece.")]
    total: Annotated[int, Meta(description="Size of the whole text in bytes.")]


@tool(SessionEventsParams, SessionEventsPage, scope="read", read_only=True)
async def session_events(
    services: ToolServices, context: CallContext, params: SessionEventsParams
) -> SessionEventsPage:
    """Read a session's events and whether its last turn has ended, optionally as a long poll."""
    session = await visible_session(services, context, params.session_id)
    until = services.clock.monotonic() + params.wait_seconds
    while True:
        await _seen(services, context, session)
        # In slices: a caller that waits here is present, and a restarted actor is found again.
        left = until - services.clock.monotonic()
        wait = max(0.0, min(left, services.config.callers.poll_grace_seconds / 2))
        reading = _tree_page if params.include_children else _page
        page, live = await reading(services, params, wait)
        if page.events or left <= 0 or not live:
            return page


@tool(EventRead, EventPiece, scope="read", read_only=True)
async def event_read(services: ToolServices, context: CallContext, params: EventRead) -> EventPiece:
    """Read one event's JSON text in pieces, if it is too large to be returned whole."""
    session = await visible_session(services, context, params.session_id)
    most = MAX_PIECE
    while True:
        found = await services.reader.run(
            event_piece, session.id, params.index, params.offset, most
        )
        if found is None:
            raise NotFound(
                f"session {session.id} has no event {params.index}",
                hint="session_events returns last_index and truncated_before",
            )
        data, next_offset, total = found
        piece = EventPiece(data=data, next_offset=next_offset, total=total)
        if response_size.cost(piece) <= response_size.MAX_MESSAGE:
            return piece
        most = len(data.encode()) * 2 // 3


async def _seen(services: ToolServices, context: CallContext, session: Session) -> None:
    """Count a poll of one's own session as presence: its client can answer requests."""
    if (
        context.transport == "http"
        and session.caller_id is not None
        and session.principal == context.principal
    ):
        await services.caller_seen(context.principal, session.caller_id)


async def _page(
    services: ToolServices, params: SessionEventsParams, wait: float
) -> tuple[SessionEventsPage, bool]:
    """Return a page, and whether it came from a live session, where waiting may bring more."""
    try:
        found: SessionEvents = await services.ask_session(
            params.session_id,
            ReadEvents(
                since_index=params.since_index,
                max_events=params.max_events,
                max_bytes=MAX_PAGE,
                wait_seconds=wait,
            ),
            wait + ASK_MARGIN,
        )
    except (ActorDead, NotFound, Unavailable):
        return await _page_of_log(services, params), False
    page = await _told(
        services,
        found.session,
        found.events,
        last=found.last_index,
        more=found.last_index < found.log_end and bool(found.events),
        truncated=found.truncated_before,
        done=found.turn_done,
    )
    return page, True


async def _page_of_log(services: ToolServices, params: SessionEventsParams) -> SessionEventsPage:
    session, done = await _at_rest(services, params.session_id)
    log = await services.reader.log(
        params.session_id, params.since_index, params.max_events, MAX_PAGE
    )
    return await _told(
        services,
        session,
        log.events,
        last=log.events[-1].index if log.events else params.since_index,
        more=log.more,
        truncated=log.truncated_before,
        done=done,
    )


async def _tree_page(
    services: ToolServices, params: SessionEventsParams, wait: float
) -> tuple[SessionEventsPage, bool]:
    root = params.session_id

    async def read() -> tuple[Session, bool, TreeSlice]:
        # In this order: when the turn is done, its last event is in what is read after it.
        session, done = await _at_rest(services, root)
        log = await services.reader.run(
            tree_log, root, params.since_index, params.max_events, MAX_PAGE
        )
        return session, done, log

    session, done, found = await read()
    if not found.events and wait > 0 and found.live:
        # The end of each log is read first, then the logs again: events in between are not lost.
        ends = {each: await services.reader.last_index(each) for each in found.live}
        session, done, found = await read()
        if not found.events:
            await _first_of(
                [
                    services.ask_session(
                        session_id,
                        ReadEvents(since_index=end, max_events=1, wait_seconds=wait),
                        wait + ASK_MARGIN,
                    )
                    for session_id, end in ends.items()
                ]
            )
            session, done, found = await read()
    page = await _told(
        services,
        session,
        found.events,
        last=found.last_seq,
        more=found.more,
        truncated=found.truncated_before,
        done=done,
        by_seq=True,
    )
    return page, services.session_ref(root) is not None


async def _at_rest(services: ToolServices, session_id: str) -> tuple[Session, bool]:
    """Return the session, and whether the log has no running or queued turn of it."""
    open_turns = await services.reader.turns(session_id, ("queued", "running"))
    session = await services.reader.session(session_id)
    if session is None:
        raise session_not_found(session_id)
    return session, not open_turns


async def _told(
    services: ToolServices,
    session: Session,
    events: tuple[Event, ...] | list[Event],
    *,
    last: int,
    more: bool,
    truncated: int | None,
    done: bool,
    by_seq: bool = False,
) -> SessionEventsPage:
    views, used, cut = response_size.fitting(event_view(event) for event in events)
    if cut:
        more = True
        last = events[len(views) - 1].seq if by_seq else events[len(views) - 1].index
    completed = done and not more and session.turn_count > 0
    answer = (
        response_size.cut(session.final_response, response_size.room_for_text(used))
        if completed
        else None
    )
    failed = session.status == "failed"
    error = session.status_reason if session.status in {"failed", "timed_out"} else None
    if completed and error is None:
        turn = await services.reader.turn(session.id, session.turn_count)
        if turn is not None and turn.outcome == "failed":
            said = await services.reader.run(last_error, session.id)
            error = said or turn.result or "the turn failed"
    return SessionEventsPage(
        session_id=session.id,
        status=session.status,
        last_index=last,
        events=tuple(views),
        completed=completed,
        failed=failed,
        error=response_size.cut(error, response_size.SHORT_TEXT),
        final_response=answer,
        truncated_before=truncated,
        more=more,
    )


async def _first_of(waits: Sequence[Coroutine[Any, Any, Any]]) -> None:
    """Return when one of `waits` has ended in any way; cancel the others.

    Each must have a deadline of its own.
    """
    tasks = [asyncio.ensure_future(each) for each in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
