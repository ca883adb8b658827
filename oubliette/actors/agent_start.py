"""What it takes to start the agent of a session: its HOME, its command, its environment.

All of it is made anew at each start from what the server has: the record, the workspace's
`config.json`, the credentials that the project was given. Nothing that an agent has written is
read (issue 3).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import structlog

from oubliette.errors import NotFound, OublietteError
from oubliette.runtime.agents.credentials import Given, filled, given
from oubliette.runtime.agents.port import AgentSession
from oubliette.runtime.host.messages import ProcessLimits, StartProcess

if TYPE_CHECKING:
    from oubliette.actors.services import Services
    from oubliette.records import Project, Session, Workspace
    from oubliette.runtime.containers.port import ContainerInfo

log = structlog.get_logger(__name__)


async def agent_session(services: Services, session: Session) -> AgentSession:
    """What the agent of `session` was told about itself when it was started.

    What cannot be read any more is left out: the agent is running and has what it needs.

    Raises:
        NotFound: its project is gone.
    """
    project = await _project(services, session)
    try:
        secrets, servers = await _prepared(services, session, project)
    except OublietteError as error:
        log.info("made without its secrets", session_id=session.id, reason=str(error))
        secrets, servers = Given(), {}
    return _told(services, session, secrets, servers)


async def _prepared(
    services: Services, session: Session, project: Project
) -> tuple[Given, dict[str, Any]]:
    """The secrets of a session, and its MCP servers with those in their places."""
    workspace = await services.reader.workspace(session.workspace_id)
    return await asyncio.to_thread(_read, services, session, project, workspace)


def _read(
    services: Services, session: Session, project: Project, workspace: Workspace | None
) -> tuple[Given, dict[str, Any]]:
    config = services.folders.configs.add_workspace(project, session.workspace_id)
    secrets = given(
        services.config.credentials,
        project=(project.id, project.name),
        user=workspace.external_id if workspace is not None else None,
        agent=session.agent,
    )
    return secrets, filled(config, secrets.values)


async def _project(services: Services, session: Session) -> Project:
    project = await services.reader.project(session.project_id)
    if project is None:
        raise NotFound(f"there is no project {session.project_id}")
    return project


def _told(
    services: Services, session: Session, secrets: Given, servers: dict[str, Any]
) -> AgentSession:
    return AgentSession(
        session_id=session.id,
        project_id=session.project_id,
        depth=session.depth,
        cwd=f"/workspace/workspaces/{session.workspace_id}",
        home=f"/home/agent/{session.id}",
        pairing_secret=session.pairing_secret or "",
        api_key=services.secrets.get(session.id),
        model=session.model,
        autonomy=session.autonomy,
        mcp_servers=identified(servers, session),
        agent_session_id=session.agent_session_id,
        env=secrets.env,
        credentials=secrets.values,
    )


def identified(servers: dict[str, Any], session: Session) -> dict[str, Any]:
    """MCP servers, those over HTTP with headers that say whose call it is (seed 003).

    They say so to servers of the project; to us the record says it, whatever a header claims.
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
    services: Services, session: Session, info: ContainerInfo, process: str
) -> StartProcess:
    """The request that starts the agent of `session` in the container `info`.

    Secrets go into the environment of that one process, or into files in memory that end with it,
    and nowhere else (DESIGN 5).

    Raises:
        NotFound: its project is gone.
        ConfigError: its configuration cannot be used, or a secret is not where its reference says.
    """
    project = await _project(services, session)
    secrets, servers = await _prepared(services, session, project)
    told = _told(services, session, secrets, servers)
    command = await asyncio.to_thread(services.agents[session.agent].command, told, info.inside)
    await asyncio.to_thread(
        services.folders.create_session_home,
        project,
        session.id,
        {file.path: (file.content, file.mode) for file in command.files},
    )
    return StartProcess(
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
