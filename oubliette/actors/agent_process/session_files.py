"""Files of an agent's session that come from another node, before its process is started."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from oubliette.actors.snapshot_requests import QUEUED, BringSessionFiles
from oubliette.errors import OublietteError
from oubliette.runtime.agents.base import session_files

if TYPE_CHECKING:
    from oubliette.actors.context import ActorContext
    from oubliette.kit import Ref
    from oubliette.records import Session

log = structlog.get_logger(__name__)


async def bring_session_files(
    context: ActorContext, snapshots: Ref | None, session: Session
) -> None:
    """Bring the files of a session's turns, if another node had it before.

    Without them its agent begins with what it finds; the session's log shows that.
    """
    paths = session_files(context.agent(session.agent))
    if snapshots is None or context.homes is None or not paths:
        return
    if not context.config.cluster.snapshots:
        return
    project = await context.reader.project(session.project_id)
    if project is None:
        return
    await asyncio.to_thread(context.folders.create_session_home, project, session.id)
    message = BringSessionFiles(
        project_id=session.project_id,
        session_id=session.id,
        paths=paths,
        expected=session.agent_session_id is not None,
    )
    try:
        await snapshots.ask(message, timeout=context.config.snapshots.seconds * QUEUED)
    except OublietteError as error:
        log.warning("an agent's files may be missing", session_id=session.id, reason=str(error))
