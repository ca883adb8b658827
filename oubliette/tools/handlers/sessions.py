"""Tools that show sessions, and the look-up of the session that any tool names."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta

from oubliette.contract import field_types
from oubliette.contract.field_types import Params
from oubliette.contract.session import SessionDetail, SessionRow, WaitInfo
from oubliette.contract.session_tools import SessionStatus
from oubliette.records import TERMINAL, made_of
from oubliette.runtime.store import queries
from oubliette.tools.event_queries import listing_facts
from oubliette.tools.handlers.projects import visible_project
from oubliette.tools.schema.response_size import fitting
from oubliette.tools.schema.views import model_of, session_view
from oubliette.tools.services import session_not_found
from oubliette.tools.session_waits import waiting_of
from oubliette.tools.spec import Result, tool

if TYPE_CHECKING:
    from oubliette import records
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext

HANDOVER_SECONDS: Final = 10.0
"""Seconds that a session may have no actor right after a restart."""


class SessionOne(Params, frozen=True, kw_only=True):
    """Parameters of `session_get` and `session_interrupt`."""

    session_id: Annotated[field_types.SessionId, Meta(description="Id of the session.")]


class SessionList(Params, frozen=True, kw_only=True):
    """Parameters of `session_list`."""

    project_id: Annotated[
        field_types.ProjectId | None,
        Meta(description="Only sessions of this project. Unset: of all that the key reaches."),
    ] = None
    status: Annotated[
        SessionStatus | Annotated[tuple[SessionStatus, ...], Meta(max_length=6)] | None,
        Meta(description="Only sessions with this status, or with one of several."),
    ] = None
    exploration_id: Annotated[
        field_types.ExplorationId | None, Meta(description="Only sessions of this tree.")
    ] = None
    limit: Annotated[field_types.PageSize, Meta(description="Maximum number to return.")] = 100
    cursor: Annotated[
        field_types.Cursor | None, Meta(description="next_cursor of the previous page.")
    ] = None
    text: Annotated[
        Annotated[str, Meta(max_length=200, extra={"check": "storable"})] | None,
        Meta(description="Text that the title or the last prompt contains, in any case."),
    ] = None
    newest_first: Annotated[bool, Meta(description="Begin with the newest session.")] = False
    waiting: Annotated[
        bool, Meta(description="Show what each session waits for, as session_get does.")
    ] = False


class SessionPage(Result, frozen=True, kw_only=True):
    """Result of `session_list`; long texts are truncated."""

    sessions: tuple[SessionRow, ...]
    next_cursor: Annotated[
        str | None,
        Meta(description="null at the end; a page with fewer sessions than limit may have one."),
    ]


@tool(SessionOne, SessionDetail, scope="read", read_only=True, runs_on="live")
async def session_get(
    services: ToolServices, context: CallContext, params: SessionOne
) -> SessionDetail:
    """Show a session: its state, what it waits for, last response, children and usage."""
    session = await visible_session(services, context, params.session_id)
    waiting = await waiting_of(services, session)
    if any(wait.kind == "ended" for wait in waiting):  # it may have ended meanwhile
        session = await visible_session(services, context, params.session_id)
    session = msgspec.structs.replace(session, model=model_of(services.config, session))
    facts = await services.reader.run(listing_facts, [session], context.scope.project)
    view = session_view(*facts[session.id])
    problem = await services.problem_of(session.project_id, session.workspace_id)
    return SessionDetail(**msgspec.structs.asdict(view), waiting=waiting, problem=problem)


@tool(SessionList, SessionPage, scope="read", read_only=True)
async def session_list(
    services: ToolServices, context: CallContext, params: SessionList
) -> SessionPage:
    """List sessions of a project, or of all, including children, oldest first unless asked."""
    project_id = context.scope.project
    if params.project_id is not None:
        project_id = (await visible_project(services, context, params.project_id)).id
    page = await services.reader.run(
        queries.listed_sessions,
        project_id,
        (params.status,) if isinstance(params.status, str) else params.status or (),
        params.exploration_id,
        text=params.text or "",
        limit=params.limit,
        cursor=params.cursor,
        newest_first=params.newest_first,
    )
    records = [
        msgspec.structs.replace(record, model=model_of(services.config, record))
        for record in page.records
    ]
    facts = await services.reader.run(listing_facts, records, context.scope.project)
    waits = await waits_of(services, records) if params.waiting else {}
    views, _, cut = fitting(
        made_of(
            session_view(*facts[each.id], short=True),
            SessionRow,
            waiting=waits.get(each.id, ()),
        )
        for each in records
    )
    return SessionPage(
        sessions=tuple(views), next_cursor=views[-1].session_id if cut else page.next_cursor
    )


async def waits_of(
    services: ToolServices, sessions: list[records.Session]
) -> dict[str, tuple[WaitInfo, ...]]:
    """Return what the live ones among `sessions` wait for, by id; of this machine's sessions."""
    alone = services.nodes is None
    live = [
        each
        for each in sessions
        if each.status not in TERMINAL and (alone or services.session_ref(each.id) is not None)
    ]
    found = await asyncio.gather(*(waiting_of(services, each) for each in live))
    return {each.id: waits for each, waits in zip(live, found, strict=True)}


async def visible_session(
    services: ToolServices, context: CallContext, session_id: str
) -> records.Session:
    """The session, if it exists and the key reaches its project.

    Raises:
        NotFound: one answer for both.
    """
    record = await services.reader.session(session_id)
    if record is None or not context.scope.reaches(record.project_id):
        raise session_not_found(session_id)
    return record


async def own_session(
    services: ToolServices, context: CallContext, session_id: str
) -> records.Session:
    """Return `visible_session`, only for the principal that owns it.

    Raises:
        NotFound: it does not exist, is out of reach, or belongs to another principal.
    """
    record = await visible_session(services, context, session_id)
    if record.principal != context.principal:
        raise session_not_found(session_id)
    return record
