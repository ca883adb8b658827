"""Ways of tools to the owner of the snapshots, and the refusal where none are taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oubliette.actors.session.waits import GetWaits
from oubliette.actors.snapshot_requests import SNAPSHOTS, AskHistory
from oubliette.errors import Conflict, NotFound, OublietteError

if TYPE_CHECKING:
    from oubliette import records
    from oubliette.kit import Ref
    from oubliette.runtime.snapshots.history_records import HistoryAnswer, HistoryQuestion
    from oubliette.tools.services import ToolServices

QUEUED: Final = 10
"""Multiple of `snapshots.seconds` for an answer: what was begun for the workspace ends first."""
FLUSH_SECONDS: Final = 5.0
"""Time for a live session to request the snapshot of a turn that has just ended."""


def snapshots_ref(services: ToolServices) -> Ref:
    """Return the owner of the snapshots.

    Raises:
        Conflict: this server takes none; contains the remedy.
    """
    found = services.find_actor(SNAPSHOTS)
    if found is not None:
        return found
    if services.config.snapshots.mode == "off" and not services.config.cluster.snapshots:
        raise Conflict(
            "snapshots.mode is off, so nothing is stored of what agents do to their workspaces",
            hint='set mode = "on" in [snapshots] of the configuration and start the server again',
        )
    raise Conflict(
        "no snapshots are taken, because git is missing where the server runs",
        hint="install git there and start the server again; oubliette doctor shows it",
    )


def seconds_for(services: ToolServices) -> float:
    """Return the deadline of a request to the owner of the snapshots."""
    return services.config.snapshots.seconds * QUEUED


async def ask_history(
    services: ToolServices, session: records.Session, question: HistoryQuestion
) -> HistoryAnswer:
    """Ask about the snapshots of a session's workspace.

    Raises:
        Conflict: this server takes none.
        NotFound: there is no such snapshot, or its project was deleted with all of them.
        OublietteError: another failure, as for `ShadowRepository.answer`.
    """
    owner = snapshots_ref(services)
    await check_project(services, session)
    await requested_by(services, session)
    message = AskHistory(
        project_id=session.project_id, workspace_id=session.workspace_id, question=question
    )
    return await owner.ask(message, timeout=seconds_for(services))


async def check_project(services: ToolServices, session: records.Session) -> None:
    """Check that the project of a session exists; on a node that is its home since this call.

    Raises:
        NotFound: it was deleted.
    """
    project = await services.reader.project(session.project_id)
    if project is None or project.deleted_at is not None:
        raise NotFound(f"the project of session {session.id} was deleted, with its snapshots")
    if services.nodes is not None:  # the folders may have to be made here
        await services.project_ref(project.id)


async def requested_by(services: ToolServices, session: records.Session) -> None:
    """Return when a live session has requested the snapshot of a turn that is known to be over.

    It does that after the turn's end is stored, which clients may see before it has done it.
    """
    if services.session_ref(session.id) is None:
        return
    try:
        await services.ask_session(session.id, GetWaits(), FLUSH_SECONDS)
    except OublietteError:
        return  # it ends, or is busy; what it has requested so far is answered first
