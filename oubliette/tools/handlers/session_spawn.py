"""Tools that send a prompt to a session: `session_spawn` and `session_message`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta

from oubliette.actors.messages import SpawnSession
from oubliette.contract import field_types, session_tools
from oubliette.contract.agent_options import SessionSpawn, SpawnSettings
from oubliette.errors import InvalidParameter, SessionHandover
from oubliette.kit.retry import ask_with_retry
from oubliette.records import AgentChoice, made_of, same_fields
from oubliette.tools.handlers.projects import check_offer, visible_project
from oubliette.tools.handlers.sessions import HANDOVER_SECONDS, own_session
from oubliette.tools.spawn_options import (
    agent_api_key,
    branch_in,
    branch_source,
    claim,
    provided_tools,
    shared_tree,
)
from oubliette.tools.spec import Result, tool

if TYPE_CHECKING:
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext

COPY_SECONDS: Final = 300.0
"""Seconds for a spawn in a workspace that is a copy of another one."""
SPAWN_SECONDS: Final = 60.0
"""Seconds for a spawn, which is answered once its turn is in the log; the agent starts later."""


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
    turn: Annotated[
        int, Meta(description="Number of the message's turn in the session, from 1.")
    ] = 0
    warnings: Annotated[
        tuple[str, ...],
        Meta(description="Parts of the request without effect, such as tools that come too late."),
    ] = ()
    branch: Annotated[
        str | None,
        Meta(description="With workspace=branch in a project with a repository: its branch."),
    ] = None


@tool(SessionSpawn, Spawned, scope="write", runs_on="needed", enters="named")
async def session_spawn(
    services: ToolServices, context: CallContext, params: SessionSpawn
) -> Spawned:
    """Send a prompt to an agent, in your latest session of the workspace or in a new one.

    Returns at once; follow it with session_events or caller_listen.
    """
    project = await visible_project(services, context, params.project_id)
    return await spawn(
        services,
        context,
        params,
        project.id,
        params.prompt,
        name="session_spawn",
        title=params.title,
    )


@tool(SessionMessage, Spawned, scope="write", runs_on="needed", enters="named")
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


async def spawn(
    services: ToolServices,
    context: CallContext,
    params: SpawnSettings,
    project_id: str,
    prompt: str,
    *,
    name: str,
    session_id: str | None = None,
    title: str | None = None,
) -> Spawned:
    """Start or resume a session, or send it a message, with the key for its agent.

    Raises:
        OublietteError: as `session_spawn` answers.
    """
    check_offer(services, "agent", params.agent)
    tree = shared_tree(context, params, session_id)
    source = await branch_source(services, context, params, project_id, session_id)
    caller_id, tools = await provided_tools(services, context, params, project_id)
    ref = await services.project_ref(project_id)
    async with agent_api_key(services, context, params, project_id) as key:
        message = SpawnSession(
            principal=context.principal,
            prompt=prompt,
            session_id=session_id,
            workspace_id=params.workspace_id if source is None else None,
            create_workspace=params.create_workspace or source is not None,
            new_session=params.new_session or source is not None,
            external_id=params.external_id,
            source=params.source,
            title=title,
            caller_id=caller_id,
            caller_tools=tools,
            **same_fields(params, AgentChoice),
            api_key=key.text,
            minted_token_id=key.token_id,
            given_token_id=key.given_id,
            # A session that an agent starts on this transport counts in the agent's tree.
            parent_session_id=context.session_id if session_id is None else None,
            tree=tree,
            idempotency=claim(name, params),
            branch_from=source,
        )
        # Right after a restart its session may have no actor yet.
        answer = await ask_with_retry(
            lambda: ref.ask(message, timeout=SPAWN_SECONDS if source is None else COPY_SECONDS),
            SessionHandover,
            seconds=HANDOVER_SECONDS,
        )
        await key.bind_to(answer.session_id)
    spawned = made_of(answer, Spawned)
    if source is None:
        return spawned
    branch = await branch_in(services, project_id, answer.workspace_id)
    return msgspec.structs.replace(spawned, branch=branch)
