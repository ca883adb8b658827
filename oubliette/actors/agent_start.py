"""What it takes to start the agent of a session: its HOME, its command, its environment."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from oubliette.errors import NotFound
from oubliette.runtime.agents.port import AgentSession
from oubliette.runtime.host.messages import ProcessLimits, StartProcess

if TYPE_CHECKING:
    from oubliette.actors.services import Services
    from oubliette.records import Project, Session
    from oubliette.runtime.containers.port import ContainerInfo


async def agent_session(services: Services, session: Session) -> AgentSession:
    """What the agent of `session` is told about itself.

    Raises:
        NotFound: its project is gone.
    """
    return _told(services, session, await _project(services, session))


async def _project(services: Services, session: Session) -> Project:
    project = await services.reader.project(session.project_id)
    if project is None:
        raise NotFound(f"there is no project {session.project_id}")
    return project


def _told(services: Services, session: Session, project: Project) -> AgentSession:
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
        mcp_servers=project.mcp_servers,
        agent_session_id=session.agent_session_id,
    )


async def start_request(
    services: Services, session: Session, info: ContainerInfo, process: str
) -> StartProcess:
    """The request that starts the agent of `session` in the container `info`.

    Secrets go into the environment of that one process and nowhere else (DESIGN 5).

    Raises:
        NotFound: its project is gone.
    """
    project = await _project(services, session)
    command = services.agents[session.agent].command(_told(services, session, project), info.inside)
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
    )
