"""Tools that end what has begun: a session, the log of an ended session."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta

from oubliette.actors.messages import EndSession
from oubliette.contract import field_types
from oubliette.contract.field_types import Params
from oubliette.errors import NotFound, SessionHandover, Unavailable
from oubliette.failpoints import failpoint
from oubliette.kit import ActorDead
from oubliette.kit.retry import ask_with_retry
from oubliette.records import TERMINAL
from oubliette.runtime.store.operations import PurgeSession
from oubliette.tools.call_at_home import call_at_home
from oubliette.tools.handlers.projects import visible_project
from oubliette.tools.handlers.session_interrupt import SessionStatus
from oubliette.tools.handlers.sessions import HANDOVER_SECONDS, visible_session
from oubliette.tools.spec import Result, tool

if TYPE_CHECKING:
    from oubliette import records
    from oubliette.tools.schema.tool_result import ToolResult
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext

END_SECONDS: Final = 15.0


class SessionEnd(Params, frozen=True, kw_only=True):
    """Parameters of `session_end`."""

    session_id: Annotated[field_types.SessionId, Meta(description="Id of the session.")]
    tree: Annotated[
        bool, Meta(description="End its descendants too, in the projects that the key reaches.")
    ] = False


class SessionEnded(SessionStatus, frozen=True, kw_only=True):
    """Result of `session_end`."""

    living_descendants: Annotated[
        int,
        Meta(
            description="Number of its descendants that live on, of those that the key reaches, and"
            " keep the memory and the places of their agents; `tree` ends them too."
        ),
    ]


class SessionCleanup(Params, frozen=True, kw_only=True):
    """Parameters of `session_cleanup`."""

    project_id: Annotated[
        field_types.ProjectId | None,
        Meta(description="Only sessions of this project. Unset: of all projects."),
    ] = None
    max_age_hours: Annotated[
        float, Meta(ge=0, le=1e6, description="Minimum time since the session's end.")
    ] = 24.0


class CleanedUp(Result, frozen=True, kw_only=True):
    """Result of `session_cleanup`."""

    deleted: Annotated[int, Meta(description="Number of deleted sessions.")]


@tool(SessionEnd, SessionEnded, scope="write", destructive=True, runs_on="live")
async def session_end(
    services: ToolServices, context: CallContext, params: SessionEnd
) -> SessionEnded:
    """End a session: its agent is stopped within 5 s, its place is free, no message resumes it."""
    session = await visible_session(services, context, params.session_id)
    if not params.tree:
        status = await _end(services, session)
        below = (await _tree(services, context, session))[1:]
        living = sum(each.status not in TERMINAL for each in below)
        return SessionEnded(session_id=session.id, status=status, living_descendants=living)
    # All at once, or a tree would take as long as its agents together. A session that is ending
    # spawns no child; a child that was being spawned is found in the next round.
    ended: dict[str, str] = {}
    while True:
        tree = await _tree(services, context, session)
        found = [each for each in tree if each.id not in ended]
        if not found:
            status = ended[session.id]
            return SessionEnded(session_id=session.id, status=status, living_descendants=0)
        statuses = await asyncio.gather(
            *(
                _end(services, each)
                if each.project_id == session.project_id
                else _end_at_home(services, context, each)
                for each in found
            )
        )
        ended.update(zip((each.id for each in found), statuses, strict=True))


@tool(SessionCleanup, CleanedUp, scope="write", destructive=True, runs_on="live")
async def session_cleanup(
    services: ToolServices, context: CallContext, params: SessionCleanup
) -> CleanedUp:
    """Delete sessions that ended long ago, with their logs. Live sessions are kept."""
    project_id = params.project_id or context.scope.project
    if project_id is not None:
        project_id = (await visible_project(services, context, project_id)).id
    before = services.clock.time() - params.max_age_hours * 3600.0
    deleted = 0
    while True:
        ended = await services.reader.ended_sessions(before, project_id)
        gone = 0
        for session_id in ended:
            gone += await _clean_up(services, context, session_id, params.max_age_hours)
        deleted += gone
        if gone == 0:
            return CleanedUp(deleted=deleted)


async def _clean_up(
    services: ToolServices, context: CallContext, session_id: str, max_age_hours: float
) -> int:
    """Delete a session, or all such sessions of its project if that is on another machine.

    That one has their files. Returns how many were deleted.
    """
    record = await services.reader.session(session_id)
    if record is None:
        return 0
    given = {"project_id": record.project_id, "max_age_hours": max_age_hours}
    elsewhere = await call_at_home(services, context, session_cleanup, given)
    if elsewhere is None:
        return await _purge(services, session_id)
    return int(_answered(elsewhere)["deleted"])


async def _purge(services: ToolServices, session_id: str) -> int:
    record = await services.reader.session(session_id)
    if record is None or services.session_ref(session_id) is not None:
        return 0  # deleted already, or resumed meanwhile
    (purged,) = await services.commit((PurgeSession(session_id),))
    if not purged:
        return 0
    failpoint("session.purged")
    services.forget(session_id)
    for token_id in services.keys.of_session(session_id):
        services.keys.forget(token_id)
    if services.forget_session is not None:
        await services.forget_session(record.project_id, session_id)
    return 1


async def _end(services: ToolServices, session: records.Session) -> str:
    if session.status in TERMINAL and session.ended_by is not None:
        return session.status
    message = EndSession(session_id=session.id)

    async def end() -> str:
        if services.session_ref(session.id) is not None:
            try:
                return await services.ask_session(session.id, message, END_SECONDS)
            except (ActorDead, NotFound):
                pass  # its actor has ended meanwhile
        ref = await services.project_ref(session.project_id)
        return await ref.ask(message, timeout=END_SECONDS)

    # Right after a restart the session may have no actor yet, and cannot be ended until it has.
    return await ask_with_retry(end, SessionHandover, seconds=HANDOVER_SECONDS)


async def _end_at_home(
    services: ToolServices, context: CallContext, session: records.Session
) -> str:
    """End a session of another project, which may be on another machine."""
    ended = await call_at_home(services, context, session_end, {"session_id": session.id})
    if ended is None:
        return await _end(services, session)
    return str(_answered(ended)["status"])


def _answered(result: ToolResult) -> dict[str, Any]:
    """The answer of another machine.

    Raises:
        Unavailable: it is an error.
    """
    if result.error is not None:
        raise Unavailable(result.error["message"], hint=result.error["hint"])
    return result.structured


async def _tree(
    services: ToolServices, context: CallContext, root: records.Session
) -> list[records.Session]:
    """The session and its descendants in projects that the key reaches.

    One that it reaches may be below one that it does not.
    """
    tree = [root]
    for each in tree:  # grows during the iteration
        tree.extend(await services.reader.children(each.id))
    return [each for each in tree if context.scope.reaches(each.project_id)]
