"""HOME of a fork, with what its agent needs to know the conversation of another session.

It is made before the session is stored. If the server is killed in between, the next one removes it
as that of an unknown session.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog
from msgspec.structs import replace

from oubliette import ids
from oubliette.actors.agent_process.forked_conversation import MODE, read_conversation
from oubliette.actors.agent_process.session_files import bring_session_files
from oubliette.errors import RuntimeFailure
from oubliette.runtime.agents.base import forks_conversations, session_files
from oubliette.runtime.files.home_copies import copy_files

if TYPE_CHECKING:
    from oubliette.actors.context import ActorContext
    from oubliette.actors.messages import SessionFork
    from oubliette.kit import Ref
    from oubliette.records import Project, Session
    from oubliette.runtime.agents.base import ForksConversations

log = structlog.get_logger(__name__)


async def with_home(
    context: ActorContext,
    project: Project,
    fork: SessionFork,
    *,
    agent: str | None,
    workspace_id: str,
    snapshots: Ref | None,
) -> SessionFork:
    """Make the HOME of a fork; return the fork with what is in it.

    Args:
        context: Of the server.
        project: Project of both sessions.
        fork: Origin of the session.
        agent: Agent of the session, if it is not that of its origin.
        workspace_id: Workspace of the fork.
        snapshots: Actor that has the files of sessions of other nodes.
    """
    new = ids.new_id(ids.SESSION)
    fork = replace(fork, new_session_id=new)
    other = await context.reader.session(fork.session_id)
    if other is None or agent not in {None, other.agent} or other.agent not in context.agents:
        return fork
    await bring_session_files(context, snapshots, other)
    runtime = context.agent(other.agent)
    own = forks_conversations(runtime)
    try:
        if own is not None:
            await asyncio.to_thread(_begun, context, project, fork, own)
            return replace(fork, native=True)
        paths = session_files(runtime)
        if not paths or other.agent_session_id is None or not await _forkable(context, other, fork):
            return fork
        home = context.folders.session_home(project.id, other.id)
        await asyncio.to_thread(context.folders.create_session_home, project, new)
        copied = await asyncio.to_thread(
            copy_files,
            home,
            context.folders.session_home(project.id, new),
            paths,
            uid=project.uid,
            renamed={other.workspace_id: workspace_id},
        )
    except (RuntimeFailure, FileNotFoundError) as error:
        log.warning("a fork gets a record only", session_id=other.id, reason=str(error))
        return fork
    if not copied:
        return fork
    return replace(fork, native=True, agent_session_id=other.agent_session_id)


async def _forkable(context: ActorContext, other: Session, fork: SessionFork) -> bool:
    """Whether its agent can begin with the conversation up to this turn."""
    if other.agent_forks == "end":
        turns = await context.reader.turns(other.id)
        return all(each.number <= fork.turn for each in turns)
    return other.agent_forks == "turn"


def _begun(
    context: ActorContext, project: Project, fork: SessionFork, agent: ForksConversations
) -> None:
    """Write what an agent of ours knew after the turn."""
    assert fork.new_session_id is not None
    home = context.folders.session_home(project.id, fork.session_id)
    files = agent.forked_files(read_conversation(home, agent.conversation_file), fork.turn)
    given = {name: (content, MODE) for name, content in files.items()}
    context.folders.create_session_home(project, fork.new_session_id, given)
