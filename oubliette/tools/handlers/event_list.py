"""Tool that reads the logs of all sessions in the order of commits: `event_list`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta

from oubliette.contract import field_types
from oubliette.contract.events import EventType
from oubliette.contract.field_types import Params
from oubliette.contract.session_tools import MAX_WAIT
from oubliette.kit import ActorDead, AskTimeout
from oubliette.runtime.store import queries
from oubliette.runtime.store.queries.event_log import EventChoice
from oubliette.tools.handlers.log_watch import WaitForGrowth, log_watch
from oubliette.tools.handlers.projects import visible_project
from oubliette.tools.handlers.sessions import visible_session
from oubliette.tools.schema import response_size
from oubliette.tools.schema.views import event_views
from oubliette.tools.spec import Result, tool

if TYPE_CHECKING:
    from oubliette.runtime.store.queries import CommitSlice
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext

MAX_WHOLE: Final = 64 * field_types.KIB
"""Bytes of an event's fields above which it is a reference here, and is not searched."""


class EventList(Params, frozen=True, kw_only=True):
    """Parameters of `event_list`."""

    after: Annotated[
        Annotated[int, Meta(ge=-1, le=2**53)] | None,
        Meta(description="next of the previous answer; -1: all that is kept. Unset: from now on."),
    ] = None
    project_id: Annotated[
        field_types.ProjectId | None, Meta(description="Only events of sessions of this project.")
    ] = None
    session_id: Annotated[
        field_types.SessionId | None, Meta(description="Only events of this session.")
    ] = None
    types: Annotated[
        Annotated[tuple[EventType, ...], Meta(max_length=20)] | None,
        Meta(description="Only events of these types."),
    ] = None
    text: Annotated[
        Annotated[str, Meta(min_length=1, max_length=200, extra={"check": "storable"})] | None,
        Meta(description="Text in the fields, in any case; of events of 64 KiB at most."),
    ] = None
    max_events: Annotated[int, Meta(ge=1, le=10_000, description="Maximum number to return.")] = 500
    wait_seconds: Annotated[
        float,
        Meta(ge=0, le=MAX_WAIT, description="Time to wait for the first event, if there is none."),
    ] = 0.0


class EventListPage(Result, frozen=True, kw_only=True):
    """Result of `event_list`."""

    events: tuple[dict[str, Any], ...]
    next: Annotated[int, Meta(description="Value of after in the next call.")]
    more: Annotated[
        bool,
        Meta(description="There may be more already; call again, even if there are no events."),
    ]


@tool(EventList, EventListPage, scope="read", read_only=True)
async def event_list(
    services: ToolServices, context: CallContext, params: EventList
) -> EventListPage:
    """Read the events of all sessions in the order of seq, optionally as a long poll.

    One call looks at a part of the log, so it takes as long however few events it finds.
    """
    choice = await _choice(services, context, params)
    after = params.after
    if after is None:
        after = await services.reader.last_seq()
    until = services.clock.monotonic() + params.wait_seconds
    async with log_watch(services, wanted=params.wait_seconds > 0) as watch:
        found = await _read(services, choice, after, params.max_events)
        while watch is not None and not found.events and not found.more:
            left = until - services.clock.monotonic()
            try:
                await watch.ask(WaitForGrowth(), timeout=max(0.0, left))
            except (AskTimeout, ActorDead):  # the latter with the store's actor: ask again
                break
            found = await _read(services, choice, found.next_seq, params.max_events)
    return _page(context, found)


async def _choice(services: ToolServices, context: CallContext, params: EventList) -> EventChoice:
    """Return what is asked for, as far as the key reaches.

    Raises:
        NotFound: there is no such project or session, or it is out of reach.
    """
    project_id = context.scope.project
    if params.project_id is not None:
        project_id = (await visible_project(services, context, params.project_id)).id
    if params.session_id is not None:
        await visible_session(services, context, params.session_id)
    return EventChoice(
        project_id=project_id,
        session_id=params.session_id,
        types=params.types or (),
        text=params.text or "",
        names=context.sees_principals,
    )


async def _read(
    services: ToolServices, choice: EventChoice, after: int, max_events: int
) -> CommitSlice:
    return await services.reader.run(
        queries.chosen_events, choice, after, max_events, response_size.MAX_PARTS, MAX_WHOLE
    )


def _page(context: CallContext, found: CommitSlice) -> EventListPage:
    views, _, cut = response_size.fitting(event_views(found.events, names=context.sees_principals))
    return EventListPage(
        events=tuple(views),
        next=found.events[len(views) - 1].seq if cut else found.next_seq,
        more=cut or found.more,
    )
