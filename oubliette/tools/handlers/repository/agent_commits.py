"""Answers from snapshots, and commits that an agent has made, as several tools use them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oubliette.actors.merge_requests import FetchAgentCommits
from oubliette.actors.session.waits import GetWaits
from oubliette.actors.snapshot_requests import SNAPSHOTS, AskHistory, TakeCheckpoint
from oubliette.errors import Conflict, NotFound, OublietteError
from oubliette.runtime.snapshots.history_records import StatesAnswer, StatesQuestion
from oubliette.runtime.snapshots.snapshot_records import SnapshotLabel
from oubliette.tools.handlers.containers import container_in_use, workspace_path
from oubliette.tools.handlers.projects import visible_project

if TYPE_CHECKING:
    from oubliette import records
    from oubliette.actors.merge_requests import AgentCommitsFetched
    from oubliette.kit import Ref
    from oubliette.runtime.snapshots.history_records import HistoryAnswer, HistoryQuestion
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext

QUEUED: Final = 10
"""Multiple of `snapshots.seconds` for an answer: what was begun for the workspace ends first."""
FLUSH_SECONDS: Final = 5.0
"""Time for a live session to request the snapshot of a turn that has just ended."""


def snapshots_ref(services: ToolServices) -> Ref:
    """The owner of the snapshots.

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
    """The deadline of a request to the owner of the snapshots."""
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


COMMITS_SECONDS: Final = 900.0
"""Time for the fetch, and for what is under way in the repository before it."""
_MILLISECOND: Final = 1000


async def fetched_commits(services: ToolServices, session: records.Session) -> AgentCommitsFetched:
    """Fetch what was committed in a session's workspace into the project's repository.

    The container is started for it, if it does not run.

    Raises:
        Conflict: the workspace was deleted, or has no such commits; contains the remedy.
        OublietteError: another failure, as for `CommitQuarantine.fetch`.
    """
    workspace = await services.reader.workspace(session.workspace_id)
    if workspace is None or workspace.deleted_at is not None:
        raise Conflict(
            "the workspace was deleted, with the repository that has the agent's commits",
            hint='use commits="turns": the snapshots of its files are there',
        )
    project = await services.reader.project(session.project_id)
    assert project is not None, "the session is visible"
    states = await ask_history(services, session, StatesQuestion(session_id=session.id))
    assert isinstance(states, StatesAnswer)
    async with container_in_use(services, project, workspace.id, "commits"):
        owner = await services.project_ref(project.id)
        message = FetchAgentCommits(
            workspace_id=workspace.id,
            workspace=workspace_path(project, workspace.id),
            first_tree=states.states[0].tree,
        )
        return await owner.ask(message, timeout=COMMITS_SECONDS)


async def check_cloned(
    services: ToolServices, context: CallContext, session: records.Session
) -> None:
    """Check that the project of a session has a repository.

    Raises:
        Conflict: it has none.
        NotFound: the key does not reach the project.
    """
    project = await visible_project(services, context, session.project_id)
    if project.repository is None:
        raise Conflict(
            f"project {project.id} was not cloned from a repository, so it has no branches",
            hint="session_export takes the changes out as a patch",
        )


async def store_now(services: ToolServices, session: records.Session) -> None:
    """Take a snapshot of a session's workspace as it is now, which is not older than its commits.

    Raises:
        OublietteError: it cannot be stored.
    """
    now = services.clock.time()
    label = SnapshotLabel(
        session_id=session.id,
        turn=session.turn_count,
        moment="branch",
        tag=str(int(now * _MILLISECOND)),
        when=now,
    )
    await snapshots_ref(services).ask(
        TakeCheckpoint(
            project_id=session.project_id, workspace_id=session.workspace_id, label=label
        ),
        timeout=seconds_for(services),
    )
