"""Tools of sessions: `session_*`, without events and `session_map`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import Meta

from oubliette.actors.messages import EndSession, InterruptSession, SpawnSession
from oubliette.errors import InvalidParameter, NotFound, SessionHandover
from oubliette.failpoints import failpoint
from oubliette.kit import ActorDead
from oubliette.kit.retry import ask_with_retry
from oubliette.records import TERMINAL
from oubliette.runtime.store.operations import PurgeSession
from oubliette.tool_params import field_types, session_tools
from oubliette.tool_params.base import Params
from oubliette.tools.event_queries import listing_facts
from oubliette.tools.handlers.projects import check_offer, visible_project
from oubliette.tools.idempotency import claim
from oubliette.tools.models import model_of
from oubliette.tools.schema.response_size import fitting
from oubliette.tools.schema.views import SessionDetail, SessionView, session_view
from oubliette.tools.services import session_not_found
from oubliette.tools.session_waits import waiting_of
from oubliette.tools.spawn_options import SpawnSettings, provided_tools, session_key
from oubliette.tools.spec import Result, tool

if TYPE_CHECKING:
    from oubliette import records
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext

SPAWN_SECONDS: Final = 60.0
"""Seconds for a spawn, which is answered once its turn is in the log; the agent starts later."""
HANDOVER_SECONDS: Final = 10.0
INTERRUPT_SECONDS: Final = 30.0
END_SECONDS: Final = 15.0

Status = Literal["created", "running", "idle", "completed", "failed", "timed_out"]


class SessionSpawn(SpawnSettings, frozen=True, kw_only=True):
    """Parameters of `session_spawn`."""

    project_id: Annotated[field_types.ProjectId, Meta(description="Project of the session.")]
    prompt: Annotated[field_types.Prompt, Meta(description="The first message to the agent.")]


class SessionMessage(SpawnSettings, frozen=True, kw_only=True):
    """Parameters of `session_message`."""

    message: session_tools.Message
    session_id: session_tools.ContinuedSession = None
    project_id: Annotated[
        field_types.ProjectId | None,
        Meta(
            description="Project for a message without session_id: your latest session in the"
            " workspace, else a new one."
        ),
    ] = None


class Spawned(Result, frozen=True, kw_only=True):
    """Result of `session_spawn` and `session_message`."""

    session_id: str
    project_id: str
    workspace_id: str
    workspace_created: bool
    status: str
    spawned: Annotated[bool, Meta(description="True if the session is new.")]
    resumed: Annotated[bool, Meta(description="True if a stopped session was resumed.")]
    last_index: Annotated[
        int,
        Meta(
            description="since_index for session_events that returns the events after this message."
        ),
    ]
    warnings: Annotated[
        tuple[str, ...],
        Meta(description="Parts of the request without effect, such as tools that come too late."),
    ] = ()


class SessionOne(Params, frozen=True, kw_only=True):
    """Parameters of `session_get` and `session_interrupt`."""

    session_id: Annotated[field_types.SessionId, Meta(description="Id of the session.")]


class SessionEnd(Params, frozen=True, kw_only=True):
    """Parameters of `session_end`."""

    session_id: Annotated[field_types.SessionId, Meta(description="Id of the session.")]
    tree: Annotated[bool, Meta(description="End its descendants too.")] = False


class SessionStatus(Result, frozen=True, kw_only=True):
    """Result of `session_interrupt` and `session_end`."""

    session_id: str
    status: str


class SessionList(Params, frozen=True, kw_only=True):
    """Parameters of `session_list`."""

    project_id: Annotated[field_types.ProjectId, Meta(description="Id of the project.")]
    status: Annotated[Status | None, Meta(description="Only sessions with this status.")] = None
    exploration_id: Annotated[
        field_types.ExplorationId | None, Meta(description="Only sessions of this tree.")
    ] = None
    limit: Annotated[field_types.PageSize, Meta(description="Maximum number to return.")] = 100
    cursor: Annotated[
        field_types.Cursor | None, Meta(description="next_cursor of the previous page.")
    ] = None


class SessionPage(Result, frozen=True, kw_only=True):
    """Result of `session_list`; long texts are truncated."""

    sessions: tuple[SessionView, ...]
    next_cursor: str | None


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


@tool(SessionSpawn, Spawned, scope="write")
async def session_spawn(
    services: ToolServices, context: CallContext, params: SessionSpawn
) -> Spawned:
    """Send a prompt to an agent, in your latest session of the workspace or in a new one.

    Returns at once; follow it with session_events or caller_listen.
    """
    project = await visible_project(services, context, params.project_id)
    return await spawn(services, context, params, project.id, params.prompt, name="session_spawn")


@tool(SessionMessage, Spawned, scope="write")
async def session_message(
    services: ToolServices, context: CallContext, params: SessionMessage
) -> Spawned:
    """Send a message to a session of yours; it is queued while a turn runs.

    A stopped session is resumed. Returns at once; follow it with session_events or caller_listen.
    """
    if params.session_id is not None:
        session = await own_session(services, context, params.session_id)
        if params.project_id not in {None, session.project_id}:
            raise InvalidParameter(
                "project_id: the session belongs to another project; leave it out",
                field="project_id",
            )
        project_id = session.project_id
    elif params.project_id is not None:
        project_id = (await visible_project(services, context, params.project_id)).id
    else:
        raise InvalidParameter(
            "session_id: is required; give session_id or project_id", field="session_id"
        )
    return await spawn(
        services,
        context,
        params,
        project_id,
        params.message,
        name="session_message",
        session_id=params.session_id,
    )


@tool(SessionOne, SessionStatus, scope="write")
async def session_interrupt(
    services: ToolServices, context: CallContext, params: SessionOne
) -> SessionStatus:
    """Interrupt the running turn of a session; the session stays. No running turn is no error."""
    session = await visible_session(services, context, params.session_id)
    status: str = session.status
    if services.session_ref(session.id) is not None:
        status = await services.ask_session(session.id, InterruptSession(), INTERRUPT_SECONDS)
    return SessionStatus(session_id=session.id, status=status)


@tool(SessionEnd, SessionStatus, scope="write", destructive=True)
async def session_end(
    services: ToolServices, context: CallContext, params: SessionEnd
) -> SessionStatus:
    """End a session: its agent is stopped within 5 s, its place is free, no message resumes it."""
    session = await visible_session(services, context, params.session_id)
    if not params.tree:
        return SessionStatus(session_id=session.id, status=await _end(services, session))
    # All at once, or a tree would take as long as its agents together. A session that is ending
    # spawns no child; a child that was being spawned is found in the next round.
    ended: dict[str, str] = {}
    while True:
        found = [each for each in await _tree(services, session) if each.id not in ended]
        if not found:
            return SessionStatus(session_id=session.id, status=ended[session.id])
        statuses = await asyncio.gather(*(_end(services, each) for each in found))
        ended.update(zip((each.id for each in found), statuses, strict=True))


@tool(SessionOne, SessionDetail, scope="read", read_only=True)
async def session_get(
    services: ToolServices, context: CallContext, params: SessionOne
) -> SessionDetail:
    """Show a session: its state, what it waits for, last response, children and usage."""
    session = await visible_session(services, context, params.session_id)
    waiting = await waiting_of(services, session)
    if any(wait.kind == "ended" for wait in waiting):  # it may have ended meanwhile
        session = await visible_session(services, context, params.session_id)
    children = await services.reader.children(session.id)
    last = await services.reader.last_index(session.id)
    session = msgspec.structs.replace(session, model=model_of(services.config, session))
    view = session_view(session, last, [child.id for child in children])
    return SessionDetail(**msgspec.structs.asdict(view), waiting=waiting)


@tool(SessionList, SessionPage, scope="read", read_only=True)
async def session_list(
    services: ToolServices, context: CallContext, params: SessionList
) -> SessionPage:
    """List the sessions of a project including children, oldest first."""
    project = await visible_project(services, context, params.project_id)
    page = await services.reader.sessions(
        project.id,
        params.status,
        params.exploration_id,
        limit=params.limit,
        cursor=params.cursor,
    )
    facts = await services.reader.run(listing_facts, [record.id for record in page.records])
    views, _, cut = fitting(
        session_view(
            msgspec.structs.replace(record, model=model_of(services.config, record)),
            *facts[record.id],
            short=True,
        )
        for record in page.records
    )
    return SessionPage(
        sessions=tuple(views), next_cursor=views[-1].session_id if cut else page.next_cursor
    )


@tool(SessionCleanup, CleanedUp, scope="write", destructive=True)
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
            gone += await _purge(services, session_id)
        deleted += gone
        if gone == 0:
            return CleanedUp(deleted=deleted)


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


async def spawn(
    services: ToolServices,
    context: CallContext,
    params: SpawnSettings,
    project_id: str,
    prompt: str,
    *,
    name: str,
    session_id: str | None = None,
) -> Spawned:
    """Start or resume a session, or send it a message, with the key for its agent.

    Raises:
        OublietteError: as `session_spawn` answers.
    """
    check_offer(services, "agent", params.agent)
    caller_id, tools = await provided_tools(services, context, params)
    ref = await services.project_ref(project_id)
    async with session_key(services, context, params, project_id) as key:
        message = SpawnSession(
            principal=context.principal,
            prompt=prompt,
            session_id=session_id,
            workspace_id=params.workspace_id,
            create_workspace=params.create_workspace,
            new_session=params.new_session,
            external_id=params.external_id,
            source=params.source,
            caller_id=caller_id,
            caller_tools=tools,
            agent=params.agent,
            model=params.model,
            autonomy=params.autonomy,
            api_key=key.text,
            minted_token_id=key.token_id,
            # A session that an agent starts on this transport counts in the agent's tree.
            parent_session_id=context.session_id if session_id is None else None,
            idempotency=claim(name, params),
        )
        # Right after a restart its session may have no actor yet.
        answer = await ask_with_retry(
            lambda: ref.ask(message, timeout=SPAWN_SECONDS),
            SessionHandover,
            seconds=HANDOVER_SECONDS,
        )
        await key.taken_by(answer.session_id)
    return Spawned(
        session_id=answer.session_id,
        project_id=answer.project_id,
        workspace_id=answer.workspace_id,
        workspace_created=answer.workspace_created,
        status=answer.status,
        spawned=answer.spawned,
        resumed=answer.resumed,
        last_index=answer.last_index,
        warnings=answer.warnings,
    )


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


async def _tree(services: ToolServices, root: records.Session) -> list[records.Session]:
    """Return the session and its descendants."""
    tree = [root]
    for each in tree:  # grows during the iteration
        tree.extend(await services.reader.children(each.id))
    return tree


async def visible_session(
    services: ToolServices, context: CallContext, session_id: str
) -> records.Session:
    """Return the session, if it exists and the key reaches its project.

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
