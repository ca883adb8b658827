"""Tools that read logs: `session_events`, `event_read`."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta

from oubliette.actors.event_pages import (
    ASK_MARGIN,
    EventPage,
    error_of,
    long_poll,
    read_page,
    stored_state,
)
from oubliette.actors.messages import ReadEvents
from oubliette.contract import field_types
from oubliette.contract.field_types import Params
from oubliette.contract.session import SessionEventsPage
from oubliette.contract.session_tools import EventsParams
from oubliette.errors import NotFound
from oubliette.tools.event_queries import event_piece, tree_log
from oubliette.tools.handlers.sessions import visible_session
from oubliette.tools.schema import response_size
from oubliette.tools.schema.views import MAX_EVENT, event_views
from oubliette.tools.spec import CALLERS, Result, tool

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from oubliette.records import Session
    from oubliette.tools.event_queries import TreeSlice
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext

MAX_PAGE: Final = response_size.MAX_PARTS
"""Maximum bytes of events that are read for one answer, which may contain fewer."""
_MAX_WHOLE: Final = MAX_EVENT // 2
"""Bytes of an event's fields above which a message, which has them twice, never takes them."""
MAX_PIECE: Final = 512 * field_types.KIB
"""Maximum bytes of one `event_read`; less if the message would be too large."""


class SessionEventsParams(EventsParams, frozen=True, kw_only=True):
    """Parameters of `session_events`."""

    include_children: Annotated[
        bool,
        Meta(
            description="Include the tree below the session, as far as the key reaches it, in the"
            " order of commits; since_index and last_index are then values of seq."
        ),
    ] = False


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


@tool(SessionEventsParams, SessionEventsPage, scope="read", read_only=True, runs_on="live")
async def session_events(
    services: ToolServices, context: CallContext, params: SessionEventsParams
) -> SessionEventsPage:
    """Read a session's events and whether its last turn has ended, optionally as a long poll."""
    session = await visible_session(services, context, params.session_id)

    async def read(wait: float) -> EventPage:
        # A caller that waits here is present.
        await _seen(services, context, session)
        if params.include_children:
            return await _tree_page(services, context, params, wait)
        return await read_page(
            services.reader,
            services.ask_session,
            params,
            max_bytes=MAX_PAGE,
            wait=wait,
            whole_bytes=_MAX_WHOLE,
        )

    slices = services.config.callers.poll_grace_seconds / 2
    page = await long_poll(services.clock, params.wait_seconds, slices, read)
    return await _view(services, context, page, by_seq=params.include_children)


@tool(EventRead, EventPiece, scope="read", read_only=True)
async def event_read(services: ToolServices, context: CallContext, params: EventRead) -> EventPiece:
    """Read one event's JSON text in pieces, if it is too large to be returned whole."""
    session = await visible_session(services, context, params.session_id)
    most = MAX_PIECE
    while True:
        found = await services.reader.run(
            event_piece,
            session.id,
            params.index,
            params.offset,
            most,
            names=context.sees_principals,
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
        context.transport in CALLERS
        and session.caller_id is not None
        and session.principal == context.principal
    ):
        await services.caller_seen(context.principal, session.caller_id)


async def _tree_page(
    services: ToolServices, context: CallContext, params: SessionEventsParams, wait: float
) -> EventPage:
    root, only = params.session_id, context.scope.project

    async def read() -> tuple[Session, bool, TreeSlice]:
        # In this order: when the turn is done, its last event is in what is read after it.
        session, done = await stored_state(services.reader, root)
        log = await services.reader.run(
            tree_log, root, params.since_index, params.max_events, MAX_PAGE, _MAX_WHOLE, only
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
    return EventPage(
        session=session,
        events=found.events,
        last_index=found.last_seq,
        more=found.more,
        truncated_before=found.truncated_before,
        turn_over=done,
        live=services.session_ref(root) is not None,
    )


async def _view(
    services: ToolServices, context: CallContext, page: EventPage, *, by_seq: bool
) -> SessionEventsPage:
    views, used, cut = response_size.fitting(
        event_views(page.events, names=context.sees_principals)
    )
    if cut:
        last = page.events[len(views) - 1]
        page = dataclasses.replace(page, more=True, last_index=last.seq if by_seq else last.index)
    session = page.session
    answer = None
    if page.completed:
        answer = response_size.cut(session.final_response, response_size.room_for_text(used))
    error = await error_of(services.reader, page)
    return SessionEventsPage(
        session_id=session.id,
        status=session.status,
        last_index=page.last_index,
        events=tuple(views),
        completed=page.completed,
        failed=page.failed,
        error=response_size.cut(error, response_size.SHORT_TEXT),
        final_response=answer,
        truncated_before=page.truncated_before,
        more=page.more,
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
