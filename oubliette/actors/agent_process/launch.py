"""Start of a session's agent: its HOME, its command, its environment.

All of it is made at each start from the server's own data: the record, the workspace's
`config.json`, the credentials that the project was given. Nothing that an agent has written is
read.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import structlog

from oubliette.actors.agent_process.forked_conversation import conversation_files
from oubliette.actors.store.outages import once_back
from oubliette.errors import NotFound, OublietteError
from oubliette.records import AgentChoice, same_fields
from oubliette.runtime.agents.base import AgentSession, ForkPoint
from oubliette.runtime.agents.credentials import Given, filled, given
from oubliette.runtime.files.git_identity import gitconfig
from oubliette.runtime.guest.messages import ProcessLimits, StartProcess
from oubliette.runtime.store import queries

if TYPE_CHECKING:
    from oubliette.actors.context import ActorContext
    from oubliette.records import Project, Session, Workspace
    from oubliette.runtime.agents.base import AgentCommand
    from oubliette.runtime.containers.base import ContainerInfo
    from oubliette.runtime.store.connection import StoreConnection

log = structlog.get_logger(__name__)


async def agent_session(
    context: ActorContext, session: Session, api_key: str | None
) -> AgentSession:
    """The settings that the agent of `session` was started with.

    Parts that cannot be read any more are left out: the agent is running and has what it needs.

    Raises:
        NotFound: its project is gone.
    """
    project, workspace = await _places(context, session)
    try:
        secrets, servers = await asyncio.to_thread(_read, context, session, project, workspace)
    except OublietteError as error:
        log.info("made without its secrets", session_id=session.id, reason=str(error))
        secrets, servers = Given(), {}
    return _settings(context, session, secrets, servers, api_key)


def _read(
    context: ActorContext, session: Session, project: Project, workspace: Workspace | None
) -> tuple[Given, dict[str, Any]]:
    """Return the secrets of a session, and its MCP servers with the secrets filled in."""
    config = context.folders.configs.add_workspace(project, session.workspace_id)
    secrets = given(
        context.config.credentials,
        project=(project.id, project.name),
        user=workspace.external_id if workspace is not None else None,
        agent=session.agent,
    )
    return secrets, filled(config, secrets.values)


async def _places(context: ActorContext, session: Session) -> tuple[Project, Workspace | None]:
    def read(connection: StoreConnection) -> tuple[Project | None, Workspace | None]:
        return (
            queries.project(connection, session.project_id),
            queries.workspace(connection, session.workspace_id),
        )

    # The start waits, as all that is written does: it is no failure of the agent.
    project, workspace = await once_back(lambda: context.reader.run(read))
    if project is None:
        raise NotFound(f"there is no project {session.project_id}")
    return project, workspace


def _settings(
    context: ActorContext,
    session: Session,
    secrets: Given,
    servers: dict[str, Any],
    api_key: str | None,
) -> AgentSession:
    return AgentSession(
        session_id=session.id,
        project_id=session.project_id,
        depth=session.depth,
        cwd=f"/workspace/workspaces/{session.workspace_id}",
        home=f"/home/agent/{session.id}",
        pairing_secret=session.pairing_secret or "",
        api_key=api_key,
        **same_fields(session, AgentChoice),
        mcp_servers=identified(servers, session),
        outage_seconds=context.config.containers.orphan_grace_seconds,
        agent_session_id=session.agent_session_id,
        fork_of=_fork_point(session),
        env=secrets.env,
        credentials=secrets.values,
    )


def _fork_point(session: Session) -> ForkPoint | None:
    other = session.forked_conversation
    if other is None:
        return None
    return ForkPoint(agent_session_id=other, turn=session.forked_at_turn or 0)


def identified(servers: dict[str, Any], session: Session) -> dict[str, Any]:
    """Return MCP servers, those over HTTP with headers that identify the calling session.

    The headers are for servers of the project; Oubliette itself uses its record and ignores them.
    """
    identity = {
        "X-Oubliette-Session": session.id,
        "X-Oubliette-Project": session.project_id,
        "X-Oubliette-Depth": str(session.depth),
    }
    return {
        name: {**server, "headers": {**(server.get("headers") or {}), **identity}}
        if server.get("url")
        else server
        for name, server in servers.items()
    }


async def start_request(
    context: ActorContext,
    session: Session,
    info: ContainerInfo,
    process: str,
    api_key: str | None,
) -> tuple[StartProcess, AgentSession]:
    """Return the request that starts the agent of `session` in `info`, and the agent's settings.

    Secrets go into the environment of that one process, or into files in memory that end with it,
    and nowhere else.

    Raises:
        NotFound: its project is gone.
        ConfigError: its configuration cannot be used, or a secret is not where its reference
            points.
    """
    project, workspace = await _places(context, session)
    conversation = await conversation_files(context, session)

    def prepare() -> tuple[Given, AgentSession, AgentCommand]:
        secrets, servers = _read(context, session, project, workspace)
        settings = _settings(context, session, secrets, servers, api_key)
        command = context.agent(session.agent).command(settings, info.inside)
        files = conversation | {file.path: (file.content, file.mode) for file in command.files}
        identity = gitconfig(context.config.agents)
        context.folders.create_session_home(project, session.id, files, identity)
        return secrets, settings, command

    secrets, settings, command = await asyncio.to_thread(prepare)
    request = StartProcess(
        proc=process,
        argv=command.argv,
        env=command.env,
        cwd=command.cwd,
        uid=info.inside.uid,
        gid=info.inside.uid,
        session=session.id,
        limits=ProcessLimits(core=0),
        secret_files=secrets.files,
    )
    return request, settings
